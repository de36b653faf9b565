// x (rows, K) times the transpose of packed w (N, K): a simdgroup a column, its lanes eight weights each in turn, every
// block of weights unpacked once for M rows. A row's sum has one order whatever M is: by lane over K, then simd_sum.
const int ROWS = shape[0], N = shape[1], K = shape[2];
const int lane = thread_index_in_simdgroup;
const int column = threadgroup_position_in_grid.x * 8 + simdgroup_index_in_threadgroup;
const int first = threadgroup_position_in_grid.y * M;
if (column >= N) return;
const int words = K * BITS / 32, groups = K / GROUP;
const DEVICE uint32_t* row = w + (size_t)column * words;
float total[M] = {};
for (int k = lane * 8; k < K; k += 256) {
  float q[8];
  unpack<FORMAT, BITS>(row, words, k, q);
  const size_t g = (size_t)column * groups + k / GROUP;
  const float s = SCALES == 1 ? from_e8m0(uint(scales[g])) : SCALES == 2 ? from_e4m3(uint(scales[g])) : float(scales[g]);
  const float b = BIASED ? float(biases[g]) : 0.0f;
  for (int m = 0; m < M; ++m) {
    const size_t at = (size_t)min(first + m, ROWS - 1) * K + k;
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
for (int m = 0; m < M; ++m) {
  const float result = simd_sum(total[m]) * float(factor[0]);
  if (lane == 0 && first + m < ROWS) out[(size_t)(first + m) * N + column] = T(result);
}
