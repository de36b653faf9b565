#include "project.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

#include "mlx/ops.h"
#include "parallel.h"
#include "profile.h"

namespace pilotfish {
namespace {

constexpr int64_t GRAIN = 1 << 16;  // multiplications of a piece of work: some microseconds

Format format_of(const Weights& m) {
  if (m.bits == 0) {
    switch (dtype_of(m.w)) {
      case DType::f32: return Format::dense_f32;
      case DType::bf16: return Format::dense_bf16;
      case DType::f16: return Format::dense_f16;
    }
  }
  if (m.mode == "mxfp8") return Format::e4m3;
  if (m.mode == "mxfp4" || m.mode == "nvfp4") return Format::e2m1;
  if (m.mode != "affine")
    throw std::invalid_argument("mode is '" + m.mode + "'; it must be affine, mxfp4, mxfp8 or nvfp4");
  switch (m.bits) {
    case 2: return Format::int2;
    case 3: return Format::int3;
    case 4: return Format::int4;
    case 5: return Format::int5;
    case 6: return Format::int6;
    case 8: return Format::int8;
    default: throw std::invalid_argument("affine weights have 2, 3, 4, 5, 6 or 8 bits, not " + std::to_string(m.bits));
  }
}

ScaleType scale_type(const Weights& m) {
  if (m.mode == "nvfp4") return ScaleType::e4m3;
  if (m.mode != "affine") return ScaleType::e8m0;
  switch (dtype_of(*m.scales)) {
    case DType::bf16: return ScaleType::bf16;
    case DType::f16: return ScaleType::f16;
    default: return ScaleType::f32;
  }
}

// A matrix whose arrays are inputs of an operation, found again when it runs.
struct Slot {
  Matrix matrix;
  int w, scales = -1, biases = -1, global_scale = -1;

  Matrix at(const Arrays& in, int64_t expert = 0) const {
    Matrix m = matrix;
    const auto row_of = [&](int i) { return bytes(in[i]) + expert * in[i].nbytes() / experts(in); };
    m.w = row_of(w);
    if (scales >= 0) m.scales = row_of(scales);
    if (biases >= 0) m.biases = row_of(biases);
    if (global_scale >= 0) m.factor *= in[global_scale].data<float>()[in[global_scale].size() > 1 ? expert : 0] / 2688;
    return m;
  }

  int64_t experts(const Arrays& in) const { return in[w].ndim() == 3 ? in[w].shape(0) : 1; }
};

Slot slot_for(const Weights& m, Arrays& inputs, int k) {
  Slot slot{};
  slot.w = inputs.size();
  inputs.push_back(m.w);
  if (m.bits) slot.scales = inputs.size(), inputs.push_back(*m.scales);
  if (m.bits && m.biases) slot.biases = inputs.size(), inputs.push_back(*m.biases);
  slot.matrix.format = format_of(m);
  if (m.bits) slot.matrix.scale_type = scale_type(m);
  slot.matrix.n = m.w.shape(-2), slot.matrix.k = k, slot.matrix.group = m.group;
  // The kernel's four-bit floats are 2^25 times what they stand for.
  slot.matrix.factor = slot.matrix.format == Format::e2m1 ? 0x1p-25f : 1.0f;
  if (m.global_scale) slot.global_scale = inputs.size(), inputs.push_back(mx::astype(*m.global_scale, mx::float32));
  return slot;
}

// x as the kernels want it: packed either way as needed, and summed over groups where there are biases.
class Packed {
 public:
  Packed(const float* x, int rows, int k) : x_(x), rows_(rows), k_(k) {}

  const float* in_order(bool transposed) {
    auto& made = packed_[transposed];
    if (made.empty()) {
      made.emplace_back(form().packed_size(rows_, k_));
      form().pack(x_, rows_, k_, transposed, made[0].data());
    }
    return made[0].data();
  }

  const float* sums(int group) {
    auto& made = sums_[group];
    if (made.empty()) {
      made.resize(size_t(rows_) * (k_ / group));
      for (size_t i = 0; i < made.size(); ++i)
        for (int j = 0; j < group; ++j) made[i] += x_[i * group + j];
    }
    return made.data();
  }

 private:
  const float* x_;
  int rows_, k_;
  std::vector<Floats> packed_[2];
  std::map<int, std::vector<float>> sums_;  // by group
};

// Columns of several products that share x, as one range split over the threads.
void multiply(const std::vector<Matrix>& matrices, Packed& x, int rows, float* out, int64_t stride) {
  const Span span("matmul");
  struct Part {
    Matrix matrix;
    const float *packed, *sums;
    int64_t first;
  };
  std::vector<Part> parts;
  int64_t n = 0;
  for (const auto& m : matrices) {
    parts.push_back({m, x.in_order(is_transposed(m.format)), m.biases ? x.sums(m.group) : nullptr, n});
    n += m.n;
  }
  const int64_t work = std::max<int64_t>(1, int64_t(matrices[0].k) * std::min(rows, 8));
  parallel_for(n, std::max<int64_t>(8, GRAIN / work), [&](int begin, int end) {
    for (const auto& p : parts) {
      const int from = std::max<int64_t>(0, begin - p.first), to = std::min<int64_t>(p.matrix.n, end - p.first);
      if (from < to) form().matmul(p.matrix, p.packed, p.sums, rows, out + p.first, stride, from, to);
    }
  });
}

struct After {
  int norm = -1, times = -1, residual = -1, after = -1, scale = -1;
};

}  // namespace

mx::array project(const mx::array& x, const std::vector<Weights>& matrices, const Around& around, mx::StreamOrDevice s) {
  const int k = x.shape(-1);
  const int rows = k ? x.size() / k : 0;
  Arrays inputs{x};
  std::vector<Slot> slots;
  int64_t n = 0;
  for (const auto& m : matrices) {
    slots.push_back(slot_for(m, inputs, k));
    n += slots.back().matrix.n;
  }
  After at;
  const auto add = [&](const std::optional<mx::array>& a, int& slot) {
    if (a) slot = inputs.size(), inputs.push_back(*a);
  };
  add(around.norm, at.norm), add(around.times, at.times), add(around.residual, at.residual);
  add(around.after, at.after), add(around.scale, at.scale);
  const int64_t width = around.gated ? n / 2 : n;
  auto shape = x.shape();
  shape.back() = width;
  const auto body = [=, eps = around.eps, gated = around.gated, cap = around.cap, part = around.part](const Arrays& in, Arrays& out) {
    if (rows == 0 || width == 0) return;
    const Form& f = form();
    std::vector<float> wide, weight, other;
    const float* rows_in = floats(in[0], 0, int64_t(rows) * k, wide);
    std::vector<float> normed;
    if (at.norm >= 0) {
      normed.resize(int64_t(rows) * k);
      const float* w = floats(in[at.norm], 0, k, weight);
      for (int r = 0; r < rows; ++r) f.norm(rows_in + int64_t(r) * k, w, k, eps, &normed[int64_t(r) * k]);
      rows_in = normed.data();
    }
    Packed packed(rows_in, rows, k);
    std::vector<Matrix> live;
    for (const auto& slot : slots) live.push_back(slot.at(in));
    const DType type = dtype_of(out[0]);
    const bool plain = type == DType::f32 && !gated;
    std::vector<float> scratch(plain ? 0 : size_t(rows) * n);
    float* product = plain ? out[0].data<float>() : scratch.data();
    multiply(live, packed, rows, product, n);
    if (gated)
      for (int r = 0; r < rows; ++r) {
        const float* gate = product + int64_t(r) * n;
        float* to = product + int64_t(r) * width;  // never past the row being read
        f.geglu(gate, gate + width, to, width);
      }
    const int64_t size = int64_t(rows) * width;
    if (at.times >= 0) {
      const int64_t row = in[at.times].size() / rows;
      for (int r = 0; r < rows; ++r)
        f.geglu(product + r * width, floats(in[at.times], r * row + part * width, width, other), product + r * width, width);
    }
    if (at.after >= 0) {
      const float* w = floats(in[at.after], 0, width, weight);
      const float* residual = floats(in[at.residual], 0, size, other);
      std::vector<float> one;
      const float scale = at.scale >= 0 ? *floats(in[at.scale], 0, 1, one) : 1.0f;
      for (int r = 0; r < rows; ++r) {
        float* row = product + r * width;
        f.norm(row, w, width, eps, row);
        for (int64_t i = 0; i < width; ++i) row[i] = (residual[r * width + i] + row[i]) * scale;
      }
    }
    if (cap) f.softcap(product, cap, product, size);
    if (!plain) f.from_floats(product, size, type, out[0].data<void>());
  };
  return operation("PilotfishProject", std::move(inputs), {{std::move(shape), x.dtype()}}, s, body)[0];
}

mx::array gather(const mx::array& x, const mx::array& indices, const Weights& stack, mx::StreamOrDevice s) {
  const int k = x.shape(-1), picks = indices.shape(-1);
  const int rows = indices.size() / std::max(1, picks);
  const bool per_pick = x.size() / std::max(1, k) == indices.size() && !(x.size() / std::max(1, k) == rows);
  Arrays inputs{x, mx::astype(indices, mx::int32, s)};
  const Slot slot = slot_for(stack, inputs, k);
  const int n = slot.matrix.n;
  const int64_t experts = stack.w.shape(0);
  auto shape = indices.shape();
  shape.push_back(n);
  const auto body = [=](const Arrays& in, Arrays& out) {
    const int total = rows * picks;
    if (total == 0 || n == 0) return;
    std::vector<float> wide;
    const float* from = floats(in[0], 0, in[0].size(), wide);
    const int* expert = in[1].data<int>();
    std::vector<int> order(total);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return expert[a] < expert[b]; });
    std::vector<float> sorted(int64_t(total) * k), product(int64_t(total) * n);
    for (int i = 0; i < total; ++i)
      std::copy_n(from + int64_t(per_pick ? order[i] : order[i] / picks) * k, k, &sorted[int64_t(i) * k]);
    struct Run {
      int first, count;
      Matrix matrix;
      Packed packed;
      const float *x, *sums;
    };
    std::vector<Run> runs;
    for (int i = 0; i < total;) {
      const int e = expert[order[i]];
      int count = 1;
      while (i + count < total && expert[order[i + count]] == e) ++count;
      const Matrix m = slot.at(in, std::clamp<int64_t>(e, 0, experts - 1));
      runs.push_back({i, count, m, Packed(&sorted[int64_t(i) * k], count, k), nullptr, nullptr});
      i += count;
    }
    for (auto& run : runs) {
      run.x = run.packed.in_order(is_transposed(run.matrix.format));
      run.sums = run.matrix.biases ? run.packed.sums(run.matrix.group) : nullptr;
    }
    parallel_for(runs.size() * n, std::max<int64_t>(8, GRAIN / k), [&](int begin, int end) {
      for (int r = begin / n; r <= (end - 1) / n; ++r) {
        const Run& run = runs[r];
        const int first = std::max(0, begin - r * n), last = std::min(n, end - r * n);
        form().matmul(run.matrix, run.x, run.sums, run.count, &product[int64_t(run.first) * n], n, first, last);
      }
    });
    const DType type = dtype_of(out[0]);
    const int width = type == DType::f32 ? 4 : 2;
    for (int i = 0; i < total; ++i)
      form().from_floats(&product[int64_t(i) * n], n, type, out[0].data<uint8_t>() + int64_t(order[i]) * n * width);
  };
  return operation("PilotfishGather", std::move(inputs), {{std::move(shape), x.dtype()}}, s, body)[0];
}

mx::array lookup(const mx::array& ids, const Weights& table, int k, float scale, mx::Dtype dtype, mx::StreamOrDevice s) {
  Arrays inputs{mx::astype(ids, mx::int32, s)};
  const Slot slot = slot_for(table, inputs, k);
  auto shape = ids.shape();
  shape.push_back(k);
  return operation("PilotfishLookup", std::move(inputs), {{std::move(shape), dtype}}, s, [=](const Arrays& in, Arrays& out) {
    const Matrix matrix = slot.at(in);
    std::vector<float> row(k);
    for (size_t i = 0; i < in[0].size(); ++i) {
      const int id = std::clamp(in[0].data<int>()[i], 0, matrix.n - 1);
      form().unpack(matrix, id, row.data());
      for (auto& x : row) x *= scale;
      form().from_floats(row.data(), k, dtype_of(out[0]), out[0].data<uint8_t>() + int64_t(i) * k * out[0].itemsize());
    }
  })[0];
}

mx::array blend(const mx::array& projected, const mx::array& own, const mx::array& weight, float eps, float scale,
                float factor, mx::StreamOrDevice s) {
  const int width = weight.shape(0), layers = projected.shape(-1) / width;
  const int64_t count = projected.size() / width;
  mx::Shape shape{projected.shape(0), projected.shape(1), layers, width};
  return operation("PilotfishBlend", {projected, own, weight}, {{std::move(shape), own.dtype()}}, s,
                   [=](const Arrays& in, Arrays& out) {
    std::vector<float> a, b, w, row(width);
    const float *from = floats(in[0], 0, in[0].size(), a), *other = floats(in[1], 0, in[1].size(), b);
    const float* norm = floats(in[2], 0, width, w);
    for (int64_t r = 0; r < count; ++r) {
      for (int i = 0; i < width; ++i) row[i] = from[r * width + i] * scale;
      form().norm(row.data(), norm, width, eps, row.data());
      for (int i = 0; i < width; ++i) row[i] = (row[i] + other[r * width + i]) * factor;
      form().from_floats(row.data(), width, dtype_of(out[0]), out[0].data<uint8_t>() + r * width * out[0].itemsize());
    }
  })[0];
}

}  // namespace pilotfish
