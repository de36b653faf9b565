// Blocks of keys joined in order, one thread an output number; a block in which the row saw nothing changes nothing.
const int BLOCKS = shape[0];
const int d = thread_position_in_grid.x;
const size_t query = thread_position_in_grid.y;
float most = -INFINITY, total = 0.0f, mixed = 0.0f;
for (int block = 0; block < BLOCKS; ++block) {
  const size_t at = query * BLOCKS + block;
  const float block_most = limits[at * 2];
  if (block_most == -INFINITY) continue;
  const float top = max(most, block_most);
  const float keep = exp(most - top), add = exp(block_most - top);
  most = top;
  total = fma(total, keep, limits[at * 2 + 1] * add);
  mixed = fma(mixed, keep, sums[at * D + d] * add);
}
out[query * D + d] = T(mixed / total);
