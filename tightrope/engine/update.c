/* What learning does besides the gradient: the same as `backward_recursion` in functional/estimators.py, `standardized_on_host` in
   across_ranks.py, `clipped_adam_on_host` in optimize.py, the copies of a replay in gradients.py and the loop in repeat.py.
   Functions that an update calls have one argument, a pointer to a struct, so that `repeat` can call all of them. */
#include <math.h>
#include <string.h>

typedef long long i64;
typedef struct {
  const float *x;
  float *out;
  i64 n;
} standardizing;
typedef struct {
  float *p, *g, *m, *v;
  i64 n;
  float *count;
  const float *rate, *stopped; /* `stopped` may be null */
  float *norm;
  double limit, beta1, beta2, eps;
} stepping;
typedef struct {
  void (*run)(char *const *); /* the gradient, and its table of addresses */
  char *const *table;
  char *const *columns, *const *places; /* of the minibatch: where they are, where they go, their sizes in bytes */
  const i64 *sizes;
  i64 count;
  const float *terms; /* of the loss */
  float *out;
  i64 width;
} replay;
typedef struct {
  const float *before, *number;
  double limit;
  float *out;
} comparing;
typedef struct {
  void (*run)(const void *);
  const void *arguments;
} call;
typedef struct {
  const char *batch;
  char *minibatch;
  i64 size; /* bytes of a row */
} column;
typedef struct {
  const column *columns;
  i64 num_columns, length, rows; /* rows of the batch, rows of a minibatch */
  const call *calls;
  i64 num_calls;
  const float *const *numbers; /* that an update returns */
  i64 width;
  const float *stopped; /* may be null */
} repetition;

/* y_t = x_t + decay_t y_{t+1}, with the bits of torch, whose addcmul rounds once. With `doubles`, by the doubling scheme. */
void backward_recursion(const float *restrict x, float *decay, float *y, i64 length, i64 width, i64 doubles) {
  const i64 size = length * width;
  if (!size) return;
  memcpy(y, x, size * sizeof(float));
  if (!doubles) {
    for (i64 i = 0; i < width; i++) y[size - width + i] = fmaf(decay[size - width + i], 0, y[size - width + i]);
    for (i64 start = size - 2 * width; start >= 0; start -= width)
#pragma omp simd
      for (i64 i = start; i < start + width; i++) y[i] = fmaf(decay[i], y[i + width], y[i]);
    return;
  }
  for (i64 stride = width; stride < size; stride *= 2)
#pragma omp simd
    for (i64 i = 0; i < size - stride; i++) {
      y[i] = fmaf(decay[i], y[i + stride], y[i]);
      decay[i] *= decay[i + stride];
    }
}

/* The places of each row's keys in ascending order. Returns 0 if a key is negative or not a number, or two are equal. */
i64 places(const unsigned *keys, i64 stride, i64 rows, i64 n, i64 *order, unsigned long long *memory) {
  for (i64 row = 0; row < rows; row++, keys += stride, order += n) {
    unsigned long long *from = memory, *to = memory + n;
    i64 starts[4][256] = {0};
    for (i64 i = 0; i < n; i++) {
      if (keys[i] > 0x7f800000u) return 0;
      for (int digit = 0; digit < 4; digit++) starts[digit][keys[i] >> 8 * digit & 255]++;
      from[i] = (unsigned long long)keys[i] << 32 | (unsigned long long)i;
    }
    for (int digit = 0; digit < 4; digit++) {
      i64 *start = starts[digit], sum = 0;
      for (int i = 0; i < 256; i++) sum += start[i], start[i] = sum - start[i];
      for (i64 i = 0; i < n; i++) to[start[from[i] >> (32 + 8 * digit) & 255]++] = from[i];
      unsigned long long *swapped = from;
      from = to, to = swapped;
    }
    for (i64 i = 0; i < n; i++) {
      if (i && from[i] >> 32 == from[i - 1] >> 32) return 0;
      order[i] = (i64)(from[i] & 0xffffffffu);
    }
  }
  return 1;
}

/* out = (x - mean) / (std + 1e-8), with the unbiased standard deviation. */
void standardize(const standardizing *a) {
  const float *restrict x = a->x;
  float *restrict out = a->out;
  const i64 n = a->n;
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (i64 i = 0; i < n; i++) sum += x[i];
  const float mean = (float)(sum / n);
#pragma omp simd reduction(+ : squares)
  for (i64 i = 0; i < n; i++) {
    out[i] = x[i] - mean;
    squares += (double)out[i] * out[i];
  }
  const float std = (float)(sqrt(squares / (n > 1 ? n - 1 : 1)) + 1e-8);
#pragma omp simd
  for (i64 i = 0; i < n; i++) out[i] /= std;
}

/* Clip the gradient to a global norm, if the limit is not negative, and take one step of Adam unless `stopped` is 1. Writes the
   norm before clipping. */
void clip_and_step(const stepping *a) {
  float *restrict p = a->p, *restrict g = a->g, *restrict m = a->m, *restrict v = a->v;
  const i64 n = a->n;
  double squares = 0;
  for (i64 start = 0; start < n; start += 1024) { /* short sums of floats round little, and are fast */
    const i64 stop = start + 1024 < n ? start + 1024 : n;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (i64 i = start; i < stop; i++) part += g[i] * g[i];
    squares += part;
  }
  const double norm = sqrt(squares), limit = a->limit;
  *a->norm = (float)norm;
  if (a->stopped && *a->stopped) return;
  *a->count += 1;
  const float scale = limit >= 0 && norm + 1e-6 > limit ? (float)(limit / (norm + 1e-6)) : 1.0f;
  const float step = (float)(*a->rate / (1 - pow(a->beta1, *a->count))), root = (float)sqrt(1 - pow(a->beta2, *a->count));
  const float new1 = (float)(1 - a->beta1), keep2 = (float)a->beta2, new2 = (float)(1 - a->beta2), tiny = (float)a->eps;
#pragma omp simd
  for (i64 i = 0; i < n; i++) {
    const float x = g[i] * scale;
    g[i] = x;
    m[i] += (x - m[i]) * new1;
    v[i] = v[i] * keep2 + new2 * x * x;
    p[i] -= step * m[i] / (sqrtf(v[i]) / root + tiny);
  }
}

/* Copy the columns of a minibatch to their places, compute the gradient, and write the terms of the loss. */
void gradient(const replay *a) {
  for (i64 i = 0; i < a->count; i++) memcpy(a->places[i], a->columns[i], a->sizes[i]);
  a->run(a->table);
  memcpy(a->out, a->terms, a->width * sizeof(float));
}

/* 1 if it was 1 before or a number is above a limit, else 0. */
void exceeds(const comparing *a) { *a->out = *a->before > 0 || *a->number > (float)a->limit; }

/* Copy the rows of the batch that a minibatch consists of. */
static void gather(const repetition *r, const i64 *order) {
  for (i64 c = 0; c < r->num_columns; c++) {
    const column x = r->columns[c];
    for (i64 i = 0; i < r->rows; i++) {
      const i64 row = order[i] < 0 ? 0 : order[i] < r->length ? order[i] : r->length - 1;
      if (x.size == 4)
        memcpy(x.minibatch + i * 4, x.batch + row * 4, 4);
      else if (x.size == 8)
        memcpy(x.minibatch + i * 8, x.batch + row * 8, 8);
      else
        memcpy(x.minibatch + i * x.size, x.batch + row * x.size, x.size);
    }
  }
}

/* Write the numbers that an update has returned. */
void write_row(const repetition *r, float *row) {
  for (i64 j = 0; j < r->width; j++) row[j] = *r->numbers[j];
}

/* Make an update for each of `count` minibatches, by the calls that were noted in one of them, and write a row of its numbers.
   Returns how many were made before one has set `stopped`. */
i64 repeat(const repetition *r, const i64 *order, i64 count, float *table) {
  for (i64 k = 0; k < count; k++) {
    gather(r, order + k * r->rows);
    for (i64 i = 0; i < r->num_calls; i++) r->calls[i].run(r->calls[i].arguments);
    if (r->stopped && *r->stopped) return k;
    write_row(r, table + k * r->width);
  }
  return count;
}
