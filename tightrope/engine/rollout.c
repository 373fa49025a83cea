/* The steps of a rollout: the policy acts, the environments advance, the rollout and the environments' counts are written.
   The same as `on_arrays` in collect.py with the step of envs/recorded_step.py. */
#include <string.h>

typedef long long i64;
typedef unsigned char u8;
typedef struct {
  void (*run)(char *const *);
  char *const *table;
} piece;
typedef struct {
  char *from, *to; /* `to` may be null: then nothing reads it */
  i64 size;        /* bytes of one step */
} part;
typedef struct {
  piece sample, advance, restart;
  part obs, noise;                           /* of the rollout, to the policy */
  part learned, log_prob, value;             /* from the policy, to the rollout */
  part given, state;                         /* from the policy and the environments, to the environments */
  part advanced, shown, reward, terminated;  /* what follows: the state, then from the environments to the rollout */
  part over, restarted, reset, led;          /* where episodes end: into the restart, its noise, the actions that led there */
  part fresh, begun;                         /* and what it returns */
  char *final_obs, *truncated, *last;
  int *clock;
  float *running_return, *episodes, *returns, *lengths;
  u8 *done, *dead;
  i64 rows, limit, deaths; /* deaths: environments that end the rollout once they have terminated; 0: never */
} rollout;

static void move(part p, i64 t_from, i64 t_to) {
  if (p.to) memcpy(p.to + t_to * p.size, p.from + t_from * p.size, p.size);
}

/* The policy acts at step t: it is given an observation and noise of the rollout, and what it returns is written down. */
void act(const rollout *r, i64 t) {
  move(r->obs, t, 0);
  move(r->noise, t, 0);
  r->sample.run(r->sample.table);
  move(r->learned, 0, t);
  move(r->log_prob, 0, t);
  move(r->value, 0, t);
}

/* Take the steps from `start` to before `stop`, of `steps` in the whole rollout. Returns the number of the last step plus 1. */
i64 collect(const rollout *r, i64 start, i64 stop, i64 steps) {
  i64 n = r->rows, width = r->shown.size / n;
  for (i64 t = start; t < stop; t++) {
    act(r, t);
    move(r->given, 0, 0);
    move(r->state, 0, 0);
    r->advance.run(r->advance.table);
    const u8 *terminated = (const u8 *)r->terminated.from;
    u8 *truncated = (u8 *)r->truncated + t * n;
    i64 ended = 0, died = 0;
    for (i64 i = 0; i < n; i++) {
      r->done[i] = terminated[i] | (r->limit && r->clock[i] >= r->limit - 1);
      truncated[i] = r->done[i] & !terminated[i];
      ended += r->done[i];
    }
    move(r->reward, 0, t);
    move(r->terminated, 0, t);
    char *next = t + 1 < steps ? r->shown.to + (t + 1) * r->shown.size : r->last, *final_obs = r->final_obs + t * r->shown.size;
    const char *state = r->advanced.from;
    memcpy(final_obs, r->shown.from, r->shown.size);
    if (ended) {
      move(r->over, 0, 0);
      move(r->restarted, 0, 0);
      move(r->reset, t, 0);
      move(r->led, 0, 0);
      r->restart.run(r->restart.table);
      state = r->fresh.from;
      memcpy(next, r->begun.from, r->begun.size);
    } else
      memcpy(next, r->shown.from, r->shown.size);
    const float *reward = (const float *)r->reward.from;
    for (i64 i = 0; i < n; i++) r->clock[i] += 1, r->running_return[i] += reward[i];
    memcpy(r->advanced.to, state, r->advanced.size);
    if (ended)
      for (i64 i = 0; i < n; i++) {
        float done = r->done[i];
        r->episodes[i] += done;
        r->returns[i] += r->running_return[i] * done;
        r->lengths[i] += (float)r->clock[i] * done;
        if (r->done[i])
          r->running_return[i] = 0, r->clock[i] = 0;
        else /* the row goes on: what it shows is what followed */
          memcpy(final_obs + i * width, next + i * width, width);
      }
    for (i64 i = 0; i < n; i++) died += r->dead[i] |= terminated[i];
    if (r->deaths && died >= r->deaths) {
      if (next != r->last) memcpy(r->last, next, r->shown.size);
      return t + 1;
    }
  }
  return stop;
}
