// One simdgroup: up to R query rows of one key/value head against one block of BLOCK keys, in order of position. Gives
// each row's maximum, sum and weighted sum of values over the block; attention_join.metal puts blocks together.
// q (B, L, H, D); k0, v0 (B, KV, SLOTS, D): position p in slot p, or p % SLOTS with RING; from start[b] on, positions lie
// in k1, v1 (B, KV, TAIL, D). Row i stands at length[b] + i and sees WINDOW positions up to its own (0: all).
const int L = shape[0], SLOTS = shape[1], TAIL = shape[2], WINDOW = shape[3], BLOCKS = shape[4];
const int lane = thread_index_in_simdgroup;
const int shared = H / KV, queries = L * shared, tiles = (queries + R - 1) / R;
const int unit = threadgroup_position_in_grid.z;  // batch, key/value head, tile of queries
const int tile = unit % tiles, head = unit / tiles % KV, b = unit / (tiles * KV);
const int start_of_tail = start[b], base = length[b];
const int part = threadgroup_position_in_grid.y;
const int block = part + (WINDOW ? max(0, base - WINDOW + 1) / BLOCK : 0);
constexpr int E = (D + 31) / 32;
float q_of[R][E], mixed[R][E], most[R], total[R];
int position[R];
for (int r = 0; r < R; ++r) {
  const int query = min(tile * R + r, queries - 1), i = query / shared, h = head * shared + query % shared;
  position[r] = base + i;
  most[r] = -INFINITY;
  total[r] = 0.0f;
  for (int e = 0; e < E; ++e) {
    const int d = lane + 32 * e;
    q_of[r][e] = d < D ? float(q[(((size_t)b * L + i) * H + h) * D + d]) : 0.0f;
    mixed[r][e] = 0.0f;
  }
}
const int oldest = WINDOW ? max(0, position[0] - WINDOW + 1) : 0;
const int from = max(block * BLOCK, oldest), to = min((block + 1) * BLOCK, position[R - 1] + 1);
for (int p = from; p < to; ++p) {
  const bool in_tail = !RING && p >= start_of_tail;
  const int slot = RING ? p % SLOTS : in_tail ? p - start_of_tail : p;
  const size_t at = (((size_t)b * KV + head) * (in_tail ? TAIL : SLOTS) + slot) * D;
  float key[E], value[E];
  for (int e = 0; e < E; ++e) {
    const int d = lane + 32 * e;
    key[e] = d < D ? float(in_tail ? k1[at + d] : k0[at + d]) : 0.0f;
    value[e] = d < D ? float(in_tail ? v1[at + d] : v0[at + d]) : 0.0f;
  }
  for (int r = 0; r < R; ++r) {
    if (p > position[r] || (WINDOW && p <= position[r] - WINDOW)) continue;
    float part = 0.0f;
    for (int e = 0; e < E; ++e) part = fma(q_of[r][e], key[e], part);
    const float score = simd_sum(part) * float(scale[0]);
    const float top = max(most[r], score);
    const float keep = exp(most[r] - top), weight = exp(score - top);
    most[r] = top;
    total[r] = fma(total[r], keep, weight);
    for (int e = 0; e < E; ++e) mixed[r][e] = fma(mixed[r][e], keep, weight * value[e]);
  }
}
for (int r = 0; r < R && tile * R + r < queries; ++r) {
  const int query = tile * R + r, i = query / shared, h = head * shared + query % shared;
  const size_t to_row = (((size_t)b * L + i) * H + h) * BLOCKS + part;
  if (lane == 0) {
    limits[to_row * 2] = most[r];
    limits[to_row * 2 + 1] = total[r];
  }
  for (int e = 0; e < E; ++e)
    if (lane + 32 * e < D) sums[to_row * D + lane + 32 * e] = mixed[r][e];
}
