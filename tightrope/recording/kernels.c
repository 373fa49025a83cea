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
typedef int truth __attribute__((vector_size(LANES * 4)));
typedef long long pieces __attribute__((vector_size(LANES * 4)));
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

/* Terms with a factor that is 0 in a whole block, such as most of a row of one-hot numbers, are left out if the other factors are
   finite: this changes no bit. `at` are the other terms. A function returns their number, or -1 if a list is not worth it. */
INLINE int any(truth v) {
  pieces x = (pieces)v;
  long long found = 0;
#pragma GCC unroll 8
  for (int i = 0; i < LANES / 2; i++) found |= x[i];
  return found != 0;
}
/* of b, whose K rows lie bk apart */
INLINE long rows_with_numbers(int columns, long K, const float *b, long bk, int *at) {
  long count = 0, dense = 0;
  while (dense < 8 && b[dense * bk] != 0) dense++; /* most matrices: a look at a few numbers is enough */
  if (dense == 8) return -1;
  for (long k = 0; k < K; k++) {
    truth found = (truth){};
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) found |= load(b + k * bk + j * LANES) != (vec){};
    at[count] = k;
    count += any(found);
    if (k == 7 && count == 8) return -1;
  }
  return 2 * count <= K ? count : -1;
}
/* of a, whose K columns lie side by side */
INLINE long columns_with_numbers(int rows, long K, const float *a, long am, int *at) {
  long count = 0, k = 0;
  if (a[0] != 0 && a[1] != 0 && a[2] != 0 && a[3] != 0) return -1;
  for (; k + LANES <= K; k += LANES) {
    truth found = (truth){};
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) found |= load(a + i * am + k) != (vec){};
    if (!any(found)) continue;
    for (int j = 0; j < LANES; j++) at[count] = k + j, count += found[j] != 0;
    if (k == 0 && count == LANES) return -1;
  }
  for (; k < K; k++) {
    int found = 0;
    for (int i = 0; i < rows; i++) found |= a[i * am + k] != 0;
    at[count] = k, count += found;
  }
  return 2 * count <= K ? count : -1;
}

/* n times m numbers, of which m lie side by side */
INLINE int finite(long n, long m, const float *x, long step) {
  truth wrong = (truth){};
  int rest = 0;
  for (long i = 0; i < n; i++) {
    const float *row = x + i * step;
    long j = 0;
    for (; j + LANES <= m; j += LANES) wrong |= load(row + j) - load(row + j) != (vec){};
    for (; j < m; j++) rest |= row[j] - row[j] != 0;
  }
  return !any(wrong) && !rest;
}

/* `at` are K places along the inner axis, or null for the first K */
INLINE void block(int rows, int columns, long K, const int *at, const float *restrict a, long am, long ak,
                  const float *restrict b, long bk, float *c, long cm, const float *d, long dm) {
  vec sums[ROWS][COLUMNS];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) sums[i][j] = (vec){};
  for (long t = 0; t < K; t++) {
    long k = at ? at[t] : t;
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
#define BLOCK(rows, columns)                                                                                             \
  do {                                                                                                                   \
    const float *left = x + m * am, *more = d ? d + m * dm : d;                                                          \
    long some = panel;                                                                                                   \
    if (some < 0 && sound && ak == 1 && depth >= 2 * LANES) {                                                            \
      some = columns_with_numbers(rows, depth, left, am, at);                                                            \
      if (some >= 0 && sound < 0) sound = finite(depth, columns * LANES, y, bk);                                         \
      if (!sound) some = -1;                                                                                             \
    }                                                                                                                    \
    if (some < 0) block(rows, columns, depth, 0, left, am, ak, y, bk, c + m * cm, cm, more, dm);                         \
    else block(rows, columns, some, at, left, am, ak, y, bk, c + m * cm, cm, more, dm);                                  \
  } while (0)
#define ROW_BLOCKS(name, columns)                                                                                        \
  KERNEL void name(long M, long K, const float *a, long am, long ak, const float *b, long bk, float *c, long cm,         \
                   const float *d, long dm) {                                                                            \
    int at[DEPTH + LANES];                                                                                               \
    for (long k = 0; k < K; k += DEPTH, d = c, dm = cm) {                                                                \
      long m = 0, depth = K - k < DEPTH ? K - k : DEPTH;                                                                 \
      const float *x = a + k * ak, *y = b + k * bk;                                                                      \
      long panel = depth < 2 * LANES ? -1 : rows_with_numbers(columns, depth, y, bk, at);                                \
      int sound = -1; /* whether all of b is finite; -1 if that is not known */                                          \
      if (panel >= 0 && !(ak == 1 ? finite(M, depth, x, am) : am == 1 && finite(depth, M, x, ak))) panel = -1;           \
      for (; m + ROWS <= M; m += ROWS) BLOCK(ROWS, columns);                                                             \
      for (; m + 2 <= M; m += 2) BLOCK(2, columns);                                                                      \
      for (; m < M; m++) BLOCK(1, columns);                                                                              \
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
