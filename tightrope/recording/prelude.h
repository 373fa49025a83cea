/* What emitted C code is made of: elementwise functions, which compilers vectorise, and the products of kernels.c.
   Compile without -ffast-math: numbers that are not finite must stay what they are. */
#include <math.h>
#include <string.h>

typedef unsigned char u8;
typedef long long i64;
#define INLINE static inline __attribute__((always_inline))
#define LOOP static __attribute__((noinline))
typedef void product_f(long, long, long, const float *, long, long, const float *, long, float *, long, long, const float *, long,
                       long, float *);
typedef void dots_f(long, long, long, const float *, long, const float *, long, float *, long, long);
static const float one = 1;

/* elementwise functions of floats, within 3 units in the last place ---------------------------------------------------- */

INLINE float bits_to_float(unsigned x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
INLINE unsigned float_to_bits(float x) {
  unsigned y;
  memcpy(&y, &x, 4);
  return y;
}
INLINE float power_of_two(unsigned n) { return bits_to_float((n + 127u) << 23); }

#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number */
#define LOG2_E 1.44269504088896341f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f

/* x = n ln 2 + r. Returns (e^r - 1) and sets n. */
INLINE float reduced_expm1(float x, unsigned *n) {
  float shifted = x * LOG2_E + MAGIC, whole = shifted - MAGIC;
  *n = float_to_bits(shifted) - float_to_bits(MAGIC);
  float r = x - whole * LN2_HIGH - whole * LN2_LOW;
  float p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r
             + 1.6666665459e-1f) * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}
INLINE float exp_f4(float x) {
  unsigned n;
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  float y = reduced_expm1(x, &n) + 1.0f;
  unsigned half = (unsigned)((int)n >> 1);
  return y * power_of_two(half) * power_of_two(n - half); /* in two steps, for results near 0 and infinity */
}
INLINE float expm1_f4(float x) {
  unsigned n;
  float y = x > 89.0f ? 89.0f : x;
  y = y < -30.0f ? -30.0f : y;
  y = reduced_expm1(y, &n);
  float half = power_of_two(n - 1);
  y = 2.0f * (y * half + (half - 0.5f));
  return x == 0.0f ? x : y;
}
INLINE float log_f4(float x) {
  float small = x < 1.17549435e-38f ? 1.0f : 0.0f, y = x < 1.17549435e-38f ? x * 8388608.0f : x;
  unsigned bits = float_to_bits(y) - 0x3f3504f3u; /* the exponent is even at the square root of 1/2 */
  float e = (float)((int)bits >> 23) - 23.0f * small;
  float m = bits_to_float((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f, z = m * m;
  float p = ((((((((7.0376836292e-2f * m - 1.1514610310e-1f) * m + 1.1676998740e-1f) * m - 1.2420140846e-1f) * m
              + 1.4249322787e-1f) * m - 1.6668057665e-1f) * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m
             + 3.3333331174e-1f) * m * z;
  p = m + (p + LN2_LOW * e - 0.5f * z) + LN2_HIGH * e;
  p = x < INFINITY ? p : x; /* infinity, and what is not a number */
  p = x == 0.0f ? -INFINITY : p;
  return x < 0.0f ? NAN : p;
}
INLINE float log1p_f4(float x) {
  float u = 1.0f + x, y = log_f4(u) * (x / (u - 1.0f));
  y = u == 1.0f ? x : y;
  return x < INFINITY ? y : x;
}
INLINE float tanh_f4(float x) {
  unsigned n;
  float a = fabsf(x), z = x * x;
  a = a > 9.5f ? 9.5f : a; /* so the exponential needs neither limits nor two steps */
  float e = (reduced_expm1(2.0f * a, &n) + 1.0f) * power_of_two(n), y = 1.0f - 2.0f / (e + 1.0f);
  float p = ((((-5.70498872745e-3f * z + 2.06390887954e-2f) * z - 5.37397155531e-2f) * z + 1.33314422036e-1f) * z
             - 3.33332819422e-1f) * z * x + x;
  return a < 0.625f ? p : copysignf(y, x);
}
/* A polynomial in x^2 up to 0.9. Above, 1 - exp(-x^2) times a polynomial in 1 / (1 + x / 2). */
INLINE float erf_f4(float x) {
  unsigned n;
  float a = fabsf(x);
  a = a > 4.0f ? 4.0f : a;
  float z = a * a, t = 1.0f / (1.0f + 0.5f * a), e = (reduced_expm1(-z, &n) + 1.0f) * power_of_two(n);
  float p = (((((8.5341206313e-05f * z - 8.1807808865e-04f) * z + 5.2043315834e-03f) * z - 2.6860708958e-02f) * z
              + 1.1283718891e-01f) * z - 3.7612635253e-01f) * z + 1.1283791668e+00f;
  float q = ((((((((-8.1427005615e-02f * t + 3.7947276940e-01f) * t - 6.5969517136e-01f) * t + 4.5334134889e-01f) * t
                 - 1.3560890794e-01f) * t + 2.4531086303e-01f) * t + 2.3275456438e-01f) * t + 2.8384521905e-01f) * t
             + 2.8198118132e-01f) * t + 2.4413416829e-06f;
  return a < 0.9f ? p * x : x != x ? x : copysignf(1.0f - e * q, x);
}
#define INDEPENDENT _Pragma("omp simd") /* the entries of the next loop do not depend on each other */
INLINE float remainder_f(float x, float y) { /* with the sign of y */
  float rest = fmodf(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* what is not a number wins, as in NumPy */
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

/* products: c (M, N) = a (M, K) b (K, N), with strides in floats -------------------------------------------------------- */

/* Entry by entry, for very small products. */
INLINE void products_by_entry(long M, long N, long K, const float *restrict a, long am, long ak, const float *restrict b,
                       long bk, long bn, float *restrict c, long cm, long cn) {
  for (long n = 0; n < N; n++)
    for (long m = 0; m < M; m++) {
      float sum = 0;
      for (long k = 0; k < K; k++) sum += a[m * am + k * ak] * b[k * bk + n * bn];
      c[m * cm + n * cn] = sum;
    }
}
INLINE void add_to(long M, long N, const float *d, long dm, long dn, float *c, long cm, long cn) {
  for (long m = 0; m < M; m++)
    for (long n = 0; n < N; n++) c[m * cm + n * cn] = d[m * dm + n * dn] + c[m * cm + n * cn];
}
INLINE void transposed(long M, long N, const float *restrict a, long am, long an, float *restrict out) {
  for (long m = 0; m < M; m++)
    for (long n = 0; n < N; n++) out[m * N + n] = a[m * am + n * an];
}
