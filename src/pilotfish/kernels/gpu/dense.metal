// x (rows, K) times the transpose of dense w (N, K), as qmm.metal.
const int ROWS = shape[0], N = shape[1], K = shape[2];
const int lane = thread_index_in_simdgroup;
const int column = threadgroup_position_in_grid.x * 8 + simdgroup_index_in_threadgroup;
const int first = threadgroup_position_in_grid.y * M;
if (column >= N) return;
float total[M] = {};
for (int k = lane * 8; k < K; k += 256) {
  for (int i = 0; i < min(8, K - k); ++i) {
    const float q = float(w[(size_t)column * K + k + i]);
    for (int m = 0; m < M; ++m)
      total[m] = fma(q, float(x[(size_t)min(first + m, ROWS - 1) * K + k + i]), total[m]);
  }
}
for (int m = 0; m < M; ++m) {
  const float result = simd_sum(total[m]);
  if (lane == 0 && first + m < ROWS) out[(size_t)(first + m) * N + column] = T(result);
}
