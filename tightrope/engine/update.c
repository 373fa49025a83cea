/* What learning does besides the gradient: the same as `backward_recursion` in functional/estimators.py, `standardized_on_host` in
   across_ranks.py, `clipped_adam_on_host` in optimize.py and the copies of a replay in gradients.py. */
#include <math.h>
#include <string.h>

typedef long long i64;
typedef struct {
  void (*run)(char *const *); /* the gradient, and its table of addresses */
  char *const *table;
  char *const *places; /* where the columns of the minibatch go, and their sizes in bytes */
  const i64 *sizes;
  i64 columns;
  const float *terms; /* of the loss */
  i64 width;
} replay;

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

/* out = (x - mean) / (std + 1e-8), with the unbiased standard deviation. */
void standardize(const float *restrict x, float *restrict out, i64 n) {
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

/* Clip the gradient to a global norm, if the limit is not negative, and take one step of Adam unless `stopped` is 1. Returns the
   norm before clipping. */
double clip_and_step(float *restrict p, float *restrict g, float *restrict m, float *restrict v, i64 n, float *count,
                     const float *rate, const float *stopped, double limit, double beta1, double beta2, double eps) {
  double squares = 0;
  for (i64 start = 0; start < n; start += 1024) { /* short sums of floats round little, and are fast */
    const i64 stop = start + 1024 < n ? start + 1024 : n;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (i64 i = start; i < stop; i++) part += g[i] * g[i];
    squares += part;
  }
  const double norm = sqrt(squares);
  if (stopped && *stopped) return norm;
  *count += 1;
  const float scale = limit >= 0 && norm + 1e-6 > limit ? (float)(limit / (norm + 1e-6)) : 1.0f;
  const float step = (float)(*rate / (1 - pow(beta1, *count))), root = (float)sqrt(1 - pow(beta2, *count));
  const float new1 = (float)(1 - beta1), keep2 = (float)beta2, new2 = (float)(1 - beta2), tiny = (float)eps;
#pragma omp simd
  for (i64 i = 0; i < n; i++) {
    const float x = g[i] * scale;
    g[i] = x;
    m[i] += (x - m[i]) * new1;
    v[i] = v[i] * keep2 + new2 * x * x;
    p[i] -= step * m[i] / (sqrtf(v[i]) / root + tiny);
  }
  return norm;
}

/* Copy the columns of a minibatch to their places, compute the gradient, and write the terms of the loss. */
void gradient(const replay *r, char *const *columns, float *terms) {
  for (i64 i = 0; i < r->columns; i++) memcpy(r->places[i], columns[i], r->sizes[i]);
  r->run(r->table);
  memcpy(terms, r->terms, r->width * sizeof(float));
}
