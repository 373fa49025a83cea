/* Products of matrices of floats: c (M, N) = a (M, K) b (K, N), plus d (M, N) if it is not null, with strides in floats.
   Compiled once for a machine. */

#if !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#define INLINE static inline __attribute__((always_inline))
#define KERNEL static __attribute__((noinline))

#if defined(__AVX512F__)
#define LANES 16
#define COLUMNS 4 /* vectors of a block of a product: 6 x 4 sums and 4 loads fit in 32 registers */
#elif defined(__AVX__)
#define LANES 8
#define COLUMNS 2
#else
#define LANES 4
#define COLUMNS 2
#endif
#define ROWS 6

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float loose __attribute__((vector_size(LANES * 4), aligned(4)));

INLINE vec load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = v; }
INLINE vec splat(float x) { return x - (vec){}; }
INLINE float total(vec v) {
  float s[LANES];
  store(s, v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
}

#define DEPTH 256 /* terms that are summed at once: longer sums would round more */

INLINE void block(int rows, int columns, long K, const float *restrict a, long am, long ak, const float *restrict b, long bk,
                  float *c, long cm, const float *d, long dm) {
  vec sums[ROWS][COLUMNS];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) sums[i][j] = (vec){};
  for (long k = 0; k < K; k++) {
    vec right[COLUMNS];
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) right[j] = load(b + k * bk + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
      vec left = splat(a[i * am + k * ak]);
#pragma GCC unroll 8
      for (int j = 0; j < columns; j++) sums[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) {
      float *to = c + i * cm + j * LANES;
      store(to, d ? load(d + i * dm + j * LANES) + sums[i][j] : sums[i][j]);
    }
}
#define ROW_BLOCKS(name, columns)                                                                                        \
  KERNEL void name(long M, long K, const float *a, long am, long ak, const float *b, long bk, float *c, long cm,         \
                   const float *d, long dm) {                                                                            \
    for (long k = 0; k < K; k += DEPTH, d = c, dm = cm) {                                                                \
      long m = 0, depth = K - k < DEPTH ? K - k : DEPTH;                                                                 \
      const float *x = a + k * ak, *y = b + k * bk;                                                                      \
      for (; m + ROWS <= M; m += ROWS)                                                                                   \
        block(ROWS, columns, depth, x + m * am, am, ak, y, bk, c + m * cm, cm, d ? d + m * dm : d, dm);                  \
      for (; m + 2 <= M; m += 2)                                                                                         \
        block(2, columns, depth, x + m * am, am, ak, y, bk, c + m * cm, cm, d ? d + m * dm : d, dm);                     \
      for (; m < M; m++) block(1, columns, depth, x + m * am, am, ak, y, bk, c + m * cm, cm, d ? d + m * dm : d, dm);    \
    }                                                                                                                    \
  }
ROW_BLOCKS(wide_panel, COLUMNS)
ROW_BLOCKS(narrow_panel, 1)

/* The vectors run along the columns of b and c (stride 1 in b). `room` holds K * LANES + M * LANES floats. */
void product(long M, long N, long K, const float *a, long am, long ak, const float *b, long bk, float *c, long cm,
                    long cn, const float *d, long dm, long dn, float *room) {
  long n = 0, wide = LANES * COLUMNS;
  if (cn == 1 && (!d || dn == 1)) {
    for (; n + wide <= N; n += wide) wide_panel(M, K, a, am, ak, b + n, bk, c + n, cm, d ? d + n : d, dm);
    for (; n + LANES <= N; n += LANES) narrow_panel(M, K, a, am, ak, b + n, bk, c + n, cm, d ? d + n : d, dm);
  }
  for (; n < N; n += LANES) { /* columns that fill no vector, and results that are not side by side */
    long some = N - n < LANES ? N - n : LANES;
    float *sums = room + K * LANES;
    const float *right = b + n;
    long step = bk;
    if (some < LANES) {
      for (long k = 0; k < K; k++)
        for (long j = 0; j < LANES; j++) room[k * LANES + j] = j < some ? b[k * bk + n + j] : 0.0f;
      right = room, step = LANES;
    }
    narrow_panel(M, K, a, am, ak, right, step, sums, LANES, 0, 0);
    for (long m = 0; m < M; m++)
      for (long j = 0; j < some; j++)
        c[m * cm + (n + j) * cn] = d ? d[m * dm + (n + j) * dn] + sums[m * LANES + j] : sums[m * LANES + j];
  }
}
/* The vectors run along K, which has stride 1 in a and b: for few columns. */
void dots(long M, long N, long K, const float *restrict a, long am, const float *restrict b, long bn,
                 float *restrict c, long cm, long cn) {
  for (long m = 0; m < M; m++)
    for (long n = 0; n < N; n++) {
      const float *x = a + m * am, *y = b + n * bn;
      vec first = {}, second = {};
      long k = 0;
      for (; k + 2 * LANES <= K; k += 2 * LANES) {
        first += load(x + k) * load(y + k);
        second += load(x + k + LANES) * load(y + k + LANES);
      }
      float rest = 0;
      for (; k < K; k++) rest += x[k] * y[k];
      c[m * cm + n * cn] = total(first + second) + rest;
    }
}
