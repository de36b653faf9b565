// Attention of a few rows to a long cache, in blocks of keys by absolute position.
//
// What a row sees of a block, and so every bit of its result, depends on positions only: not on the other rows, not on
// the size of the buffers, not on which of them holds a key.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "formats.inl"

namespace FORM {

using pilotfish::AttentionArgs;
using pilotfish::KEY_BLOCK;

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Where the key of a position lies: in one of two straight runs, or in a ring.
template <class T>
struct Place {
  const AttentionArgs& a;
  int64_t operator()(int64_t position, const T*& base, const void* first, const void* second) const {
    if (a.ring) return base = static_cast<const T*>(first), position % a.ring * a.dim;
    if (position < a.split) return base = static_cast<const T*>(first), (position - a.first) * a.dim;
    return base = static_cast<const T*>(second), (position - a.split) * a.dim;
  }
};

// Pointers to the rows of keys or values of positions [from, to).
template <class T>
void rows_of(const AttentionArgs& a, const void* first, const void* second, int64_t from, int64_t to, const T** out) {
  const Place<T> place{a};
  for (int64_t p = from; p < to; ++p) {
    const T* base;
    const int64_t at = place(p, base, first, second);
    *out++ = base + at;
  }
}

// Dot products of R queries with C keys, R * C = 8; scores to out[r * KEY_BLOCK + c].
template <class T, int R>
inline void dots(const float* const* q, const T* const* k, int dim, float scale, float* out) {
  constexpr int C = 8 / R;
  vf total[8] = {};
  for (int d = 0; d < dim; d += LANES) {
    vf key[C];
    each<C>([&](auto c) { key[c] = floats(k[c] + d); });
    each<R>([&](auto r) {
      const vf query = load(q[r] + d);
      each<C>([&](auto c) { total[r * C + c] = fma(query, key[c], total[r * C + c]); });
    });
  }
  const vf all = sums_of(total) * splat(scale);
  for (int i = 0; i < 8; ++i) out[i / C * KEY_BLOCK + i % C] = all[i];
}

template <class T, int R>
void score(const float* const* q, const T* const* k, int keys, int dim, float scale, float* out) {
  constexpr int C = 8 / R;
  int c = 0;
  for (; c + C <= keys; c += C) dots<T, R>(q, k + c, dim, scale, out + c);
  if (c == keys) return;
  const T* padded[C];
  for (int i = 0; i < C; ++i) padded[i] = k[std::min(c + i, keys - 1)];
  dots<T, R>(q, padded, dim, scale, out + c);  // KEY_BLOCK is a multiple of 8: there is room, and it is masked after
}

// out[r] = sum over keys of weight[r][key] * value[key], R rows and 2 vectors of the head at a time.
template <class T, int R>
void mix(const float* weights, const T* const* v, int keys, int dim, float* out) {
  for (int d = 0; d < dim; d += 2 * LANES) {
    vf total[2 * R] = {};
    for (int s = 0; s < keys; ++s) {
      const vf left = floats(v[s] + d), right = floats(v[s] + d + LANES);
      each<R>([&](auto r) {
        const vf w = splat(weights[r * KEY_BLOCK + s]);
        total[2 * r] = fma(w, left, total[2 * r]);
        total[2 * r + 1] = fma(w, right, total[2 * r + 1]);
      });
    }
    each<R>([&](auto r) {
      store(out + r * dim + d, total[2 * r]);
      store(out + r * dim + d + LANES, total[2 * r + 1]);
    });
  }
}

// One block of keys for query rows [begin, end) of one key/value head: (rows * shared) maxima, sums and weighted sums.
template <class T>
void block_of(const AttentionArgs& a, int block, int begin, int end, float* most, float* total, float* mixed) {
  const int count = (end - begin) * a.shared;
  const int64_t low = std::max<int64_t>(int64_t(block) * KEY_BLOCK, a.length + begin - a.window + 1);
  const int64_t from = std::max<int64_t>(low, 0);
  const int64_t to = std::min<int64_t>(int64_t(block + 1) * KEY_BLOCK, a.length + end);
  std::fill_n(most, count, NEVER);
  std::fill_n(total, count, 0.0f);
  std::fill_n(mixed, int64_t(count) * a.dim, 0.0f);
  if (from >= to) return;
  const int offset = int(from - int64_t(block) * KEY_BLOCK), keys = int(to - from);
  const T *k[KEY_BLOCK], *v[KEY_BLOCK];
  rows_of<T>(a, a.k[0], a.k[1], from, to, k);
  rows_of<T>(a, a.v[0], a.v[1], from, to, v);
  static thread_local std::vector<float> scores;
  scores.resize(size_t(count) * KEY_BLOCK + 8 * LANES);
  std::vector<const float*> q(count);
  for (int r = 0; r < count; ++r) q[r] = a.q + ((begin + r / a.shared) * int64_t(a.q_row) + r % a.shared * a.dim);
  float* s = scores.data() + offset;
  for (int r = 0; r < count;) {
    if (count - r >= 4) {
      score<T, 4>(&q[r], k, keys, a.dim, a.scale, s + int64_t(r) * KEY_BLOCK), r += 4;
    } else if (count - r >= 2) {
      score<T, 2>(&q[r], k, keys, a.dim, a.scale, s + int64_t(r) * KEY_BLOCK), r += 2;
    } else {
      score<T, 1>(&q[r], k, keys, a.dim, a.scale, s + int64_t(r) * KEY_BLOCK), r += 1;
    }
  }
  for (int r = 0; r < count; ++r) {
    // Lanes by position within the block, so that a sum's order is a position's.
    float* row = scores.data() + int64_t(r) * KEY_BLOCK;
    const int64_t position = a.length + begin + r / a.shared;
    const int first = int(std::max<int64_t>(from, position - a.window + 1) - int64_t(block) * KEY_BLOCK);
    const int last = int(std::min<int64_t>(to, position + 1) - int64_t(block) * KEY_BLOCK);
    if (first >= last) {
      std::fill_n(row + offset, keys, 0.0f);
      continue;
    }
    std::fill_n(row, first, NEVER);
    std::fill_n(row + last, KEY_BLOCK - last, NEVER);
    vf top = splat(NEVER);
    const int low_vector = first / LANES * LANES, high_vector = (last + LANES - 1) / LANES * LANES;
    for (int i = low_vector; i < high_vector; i += LANES) top = max(top, load(row + i));
    most[r] = largest(top);
    vf added = {};
    for (int i = low_vector; i < high_vector; i += LANES) {
      const vf e = exp(load(row + i) - splat(most[r]));
      store(row + i, e);
      added = added + e;
    }
    std::fill_n(row, low_vector, 0.0f);
    std::fill_n(row + high_vector, KEY_BLOCK - high_vector, 0.0f);
    total[r] = sum(added);
  }
  for (int r = 0; r < count;) {
    if (count - r >= 4) {
      mix<T, 4>(s + int64_t(r) * KEY_BLOCK, v, keys, a.dim, mixed + int64_t(r) * a.dim), r += 4;
    } else if (count - r >= 2) {
      mix<T, 2>(s + int64_t(r) * KEY_BLOCK, v, keys, a.dim, mixed + int64_t(r) * a.dim), r += 2;
    } else {
      mix<T, 1>(s + int64_t(r) * KEY_BLOCK, v, keys, a.dim, mixed + int64_t(r) * a.dim), r += 1;
    }
  }
}

// Score rows overlap by up to seven floats past their end while they are computed, hence rows in rising order above.

// Joins a block's result to what the blocks before it gave; a block in which the row sees nothing changes nothing.
void join(float& most, float& total, float* mixed, float block_most, float block_total, const float* block_mixed,
          int dim) {
  if (block_most == NEVER) return;
  const float top = std::max(most, block_most);
  const vf both = exp(vf{most == NEVER ? -100.0f : most - top, block_most - top});
  const float keep = both[0], add = both[1];
  most = top, total = total * keep + block_total * add;
  for (int d = 0; d < dim; d += LANES)
    store(mixed + d, fma(load(block_mixed + d), splat(add), load(mixed + d) * splat(keep)));
}

void attention_block(const AttentionArgs& a, int block, int begin, int end, float* most, float* total, float* mixed) {
  with_type(a.type, [&](auto* tag) {
    block_of<std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>>(a, block, begin, end, most, total, mixed);
  });
}

}  // namespace FORM
