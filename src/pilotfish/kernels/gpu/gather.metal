// Rows of x times the experts that they picked. The picks come sorted by expert; the simdgroups of every MAX-th pick of
// an expert unpack its weights once for that pick and those after it, up to MAX.
const int PICKS = shape[0], N = shape[1], K = shape[2];
const int lane = thread_index_in_simdgroup;
const int column = threadgroup_position_in_grid.x * 8 + simdgroup_index_in_threadgroup;
const int pick = threadgroup_position_in_grid.y;
if (column >= N) return;
const int expert = experts[pick];
int run = pick;  // where this expert's picks begin
while (run > 0 && experts[run - 1] == expert) --run;
if ((pick - run) % MAX) return;
int count = 1;
while (count < MAX && pick + count < PICKS && experts[pick + count] == expert) ++count;
const int words = K * BITS / 32, groups = K / GROUP;
const size_t matrix_row = (size_t)expert * N + column;
const DEVICE uint32_t* row = w + matrix_row * words;
float total[MAX] = {};
for (int k = lane * 8; k < K; k += 256) {
  float q[8];
  unpack<FORMAT, BITS>(row, words, k, q);
  const size_t g = matrix_row * groups + k / GROUP;
  const float s = SCALES == 1 ? from_e8m0(uint(scales[g])) : SCALES == 2 ? from_e4m3(uint(scales[g])) : float(scales[g]);
  const float b = BIASED ? float(biases[g]) : 0.0f;
  for (int m = 0; m < count; ++m) {
    const size_t at = (size_t)rows[pick + m] * K + k;
    float dot = 0.0f, sum = 0.0f;
    for (int i = 0; i < 8; ++i) {
      const float value = float(x[at + i]);
      dot = fma(q[i], value, dot);
      sum += value;
    }
    total[m] = fma(s, dot, total[m]);
    if (BIASED) total[m] = fma(b, sum, total[m]);
  }
}
for (int m = 0; m < count; ++m) {
  const float result = simd_sum(total[m]) * float(factor[FACTORS > 1 ? expert : 0]);
  if (lane == 0) out[(size_t)places[pick + m] * N + column] = T(result);
}
