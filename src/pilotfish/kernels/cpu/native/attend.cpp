#include "attend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "parallel.h"

namespace pilotfish {
namespace {

std::atomic<int64_t> copied_bytes{0};

constexpr int64_t PIECE = 1 << 16;  // multiplications of a piece of work: some microseconds
constexpr int TOGETHER = 16;  // rows that share a unit of work; more rows come in tiles of as many

int64_t width_of(const mx::array& a) { return a.itemsize(); }

}  // namespace

int64_t take_copied_bytes() { return copied_bytes.exchange(0); }

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps, mx::StreamOrDevice s) {
  const int dim = x.shape(-1);
  const int64_t rows = dim ? x.size() / dim : 0;
  Arrays inputs{x};
  if (weight) inputs.push_back(*weight);
  return operation("PilotfishNorm", std::move(inputs), {{x.shape(), x.dtype()}}, s, [=](const Arrays& in, Arrays& out) {
    std::vector<float> wide, scale;
    const float* from = floats(in[0], 0, rows * dim, wide);
    const float* w = in.size() > 1 ? floats(in[1], 0, dim, scale) : nullptr;
    std::vector<float> row(dim);
    for (int64_t r = 0; r < rows; ++r) {
      form().norm(from + r * dim, w, dim, eps, row.data());
      form().from_floats(row.data(), dim, dtype_of(out[0]), out[0].data<uint8_t>() + r * dim * width_of(out[0]));
    }
  })[0];
}

Arrays heads(const mx::array& x, const mx::array& q_weight, const std::optional<mx::array>& k_weight,
             const mx::array& offset, const mx::array& frequencies, int dim, int kv_heads, bool shared, float eps,
             mx::StreamOrDevice s) {
  const int batch = x.shape(0), rows = x.shape(1), width = x.shape(2);
  const int q_heads = width / dim - kv_heads * (shared ? 1 : 2);
  Arrays inputs{x, offset, frequencies, q_weight};
  if (k_weight) inputs.push_back(*k_weight);
  std::vector<Output> outputs{{{batch, rows, q_heads, dim}, x.dtype()}};
  if (kv_heads)
    for (int i = 0; i < 2; ++i) outputs.push_back({{batch, kv_heads, rows, dim}, x.dtype()});
  return operation("PilotfishHeads", std::move(inputs), std::move(outputs), s, [=](const Arrays& in, Arrays& out) {
    const Form& f = form();
    const DType type = dtype_of(out[0]);
    const int64_t item = width_of(out[0]);
    const int* start = in[1].data<int>();
    const float* frequency = in[2].data<float>();
    parallel_for(batch * rows, 64, [&](int begin, int end) {
      std::vector<float> wide, q_scale, k_scale, normed(dim), turned(dim), cosine(dim / 2), sine(dim / 2);
      const float* qw = floats(in[3], 0, dim, q_scale);
      const float* kw = in.size() > 4 ? floats(in[4], 0, dim, k_scale) : nullptr;
      for (int at = begin; at < end; ++at) {
        const int b = at / rows, i = at % rows;
        const float* row = floats(in[0], int64_t(at) * width, width, wide);
        const float position = float(start[b] + i);
        for (int d = 0; d < dim / 2; ++d) {
          cosine[d] = std::cos(position * frequency[d]);
          sine[d] = std::sin(position * frequency[d]);
        }
        const auto put = [&](const float* from, mx::array& to, int64_t index) {
          f.from_floats(from, dim, type, to.data<uint8_t>() + index * dim * item);
        };
        for (int h = 0; h < q_heads; ++h) {
          f.norm(row + h * dim, qw, dim, eps, normed.data());
          f.rotate(normed.data(), cosine.data(), sine.data(), dim, turned.data());
          put(turned.data(), out[0], int64_t(at) * q_heads + h);
        }
        for (int h = 0; h < kv_heads; ++h) {
          const float* key = row + (q_heads + h) * dim;
          const int64_t index = (int64_t(b) * kv_heads + h) * rows + i;
          f.norm(key, kw, dim, eps, normed.data());
          f.rotate(normed.data(), cosine.data(), sine.data(), dim, turned.data());
          put(turned.data(), out[1], index);
          f.norm(shared ? key : key + kv_heads * dim, nullptr, dim, eps, normed.data());
          put(normed.data(), out[2], index);
        }
      }
    });
  });
}

Arrays write(const mx::array& keys, const mx::array& values, const mx::array& new_keys, const mx::array& new_values,
             const mx::array& length, const std::optional<mx::array>& start, int ring, mx::StreamOrDevice s) {
  Arrays inputs{keys, values, new_keys, new_values, length};
  if (start) inputs.push_back(*start);
  const int batch = keys.shape(0), kv_heads = keys.shape(1), slots = keys.shape(2), dim = keys.shape(3);
  const int rows = new_keys.shape(2);
  std::vector<Output> outputs{{keys.shape(), keys.dtype(), 0}, {values.shape(), values.dtype(), 1}};
  return operation("PilotfishWrite", std::move(inputs), std::move(outputs), s, [=](const Arrays& in, Arrays& out) {
    const int* at = in[4].data<int>();
    const int* from = in.size() > 5 ? in[5].data<int>() : nullptr;
    for (int which = 0; which < 2; ++which) {
      const uint8_t* old = bytes(in[which]);
      uint8_t* to = out[which].data<uint8_t>();
      const int64_t row = dim * width_of(out[which]);
      if (to != old) std::memcpy(to, old, out[which].nbytes()), copied_bytes += out[which].nbytes();
      for (int b = 0; b < batch; ++b)
        for (int i = 0; i < rows; ++i) {
          int slot = at[b] - (from ? from[b] : 0) + i;
          slot = ring ? slot % ring : slot;
          if (slot < 0 || slot >= slots) continue;  // a finished row of a batch that still travels along
          for (int h = 0; h < kv_heads; ++h)
            std::memcpy(to + ((int64_t(b) * kv_heads + h) * slots + slot) * row,
                        bytes(in[2 + which]) + ((int64_t(b) * kv_heads + h) * rows + i) * row, row);
        }
    }
  });
}

mx::array attention(const mx::array& q, const Arrays& keys, const Arrays& values, const mx::array& length,
                    const std::optional<mx::array>& start, int64_t first, int64_t window, bool ring, float scale,
                    mx::StreamOrDevice s) {
  const int batch = q.shape(0), rows = q.shape(1), heads = q.shape(2), dim = q.shape(3);
  const int kv_heads = keys[0].shape(1), runs = keys.size(), shared = heads / kv_heads;
  Arrays inputs{q, length};
  inputs.insert(inputs.end(), keys.begin(), keys.end());
  inputs.insert(inputs.end(), values.begin(), values.end());
  if (start) inputs.push_back(*start);
  const bool has_start = start.has_value();
  const auto body = [=](const Arrays& in, Arrays& out) {
    const Form& f = form();
    std::vector<float> wide;
    const float* queries = floats(in[0], 0, in[0].size(), wide);
    const int* at = in[1].data<int>();
    const int* split = has_start ? in.back().data<int>() : nullptr;
    const auto args = [&](int b, int h) {
      AttentionArgs a{};
      a.q = queries + int64_t(b) * rows * heads * dim + int64_t(h) * shared * dim;
      for (int i = 0; i < runs; ++i) {
        const auto head_of = [&](const mx::array& x) { return bytes(x) + (int64_t(b) * kv_heads + h) * x.shape(2) * dim * x.itemsize(); };
        a.k[i] = head_of(in[2 + i]), a.v[i] = head_of(in[2 + runs + i]);
      }
      a.first = first, a.split = split ? split[b] : std::numeric_limits<int64_t>::max();
      a.length = at[b], a.window = window, a.q_row = int64_t(heads) * dim;
      a.type = dtype_of(in[2]);
      a.ring = ring ? in[2].shape(2) : 0, a.shared = shared, a.dim = dim, a.scale = scale;
      return a;
    };
    // A unit is a sequence, a key/value head and a tile of rows; few rows are split by blocks of keys as well.
    const int tile = std::min(rows, TOGETHER), tiles = (rows + tile - 1) / tile;
    int64_t longest = 0, shortest = std::numeric_limits<int64_t>::max();
    for (int b = 0; b < batch; ++b) {
      longest = std::max<int64_t>(longest, at[b] + rows);
      shortest = std::min<int64_t>(shortest, std::max<int64_t>(0, at[b] - window + 1));
    }
    const int low = shortest / KEY_BLOCK, high = (longest + KEY_BLOCK - 1) / KEY_BLOCK, blocks = high - low;
    const bool split_blocks = tiles == 1;
    const int units = batch * kv_heads * tiles * (split_blocks ? blocks : 1), width = shared * tile;
    const int64_t partial = int64_t(width) * (dim + 2);
    std::vector<float> partials(split_blocks ? units * partial : 0);
    const int64_t work = int64_t(heads) * tile * std::min<int64_t>(KEY_BLOCK, window) * dim;
    const auto finish = [&](int b, int h, int begin, int end, const float* total, const float* mixed) {
      std::vector<float> row(dim);
      for (int r = 0; r < (end - begin) * shared; ++r) {
        const float inverse = 1.0f / total[r];
        for (int d = 0; d < dim; ++d) row[d] = mixed[int64_t(r) * dim + d] * inverse;
        const int64_t to = (int64_t(b) * rows + begin + r / shared) * heads + h * shared + r % shared;
        f.from_floats(row.data(), dim, dtype_of(out[0]), out[0].data<uint8_t>() + to * dim * width_of(out[0]));
      }
    };
    const auto join = [&](float* into, const float* block, int count) {
      for (int r = 0; r < count; ++r)
        f.join(into[r], into[width + r], into + 2 * width + int64_t(r) * dim, block[r], block[width + r],
               block + 2 * width + int64_t(r) * dim, dim);
    };
    const auto clear = [&](float* into) {
      std::fill_n(into, width, -std::numeric_limits<float>::infinity());
      std::fill_n(into + width, partial - width, 0.0f);
    };
    parallel_for(units, std::max<int64_t>(1, PIECE / std::max<int64_t>(1, work)), [&](int from, int to) {
      std::vector<float> whole(partial), one(partial);
      for (int u = from; u < to; ++u) {
        if (split_blocks) {
          float* p = &partials[u * partial];
          const int bh = u / blocks;
          f.attention_block(args(bh / kv_heads, bh % kv_heads), low + u % blocks, 0, rows, p, p + width, p + 2 * width);
          continue;
        }
        const int bh = u / tiles, begin = u % tiles * tile, end = std::min(rows, begin + tile);
        const AttentionArgs a = args(bh / kv_heads, bh % kv_heads);
        clear(whole.data());
        const int first_block = std::max<int64_t>(0, a.length + begin - window + 1) / KEY_BLOCK;
        for (int block = first_block; int64_t(block) * KEY_BLOCK < a.length + end; ++block) {
          f.attention_block(a, block, begin, end, one.data(), one.data() + width, one.data() + 2 * width);
          join(whole.data(), one.data(), (end - begin) * shared);
        }
        finish(bh / kv_heads, bh % kv_heads, begin, end, whole.data() + width, whole.data() + 2 * width);
      }
    });
    if (!split_blocks) return;
    std::vector<float> whole(partial);
    for (int bh = 0; bh < batch * kv_heads; ++bh) {
      clear(whole.data());
      for (int block = 0; block < blocks; ++block) join(whole.data(), &partials[(bh * blocks + block) * partial], width);
      finish(bh / kv_heads, bh % kv_heads, 0, rows, whole.data() + width, whole.data() + 2 * width);
    }
  };
  return operation("PilotfishAttention", std::move(inputs), {{{batch, rows, heads * dim}, q.dtype()}}, s, body)[0];
}

}  // namespace pilotfish
