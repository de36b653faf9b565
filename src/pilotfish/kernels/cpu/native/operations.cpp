#include "operations.h"

#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "forms.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "parallel.h"

namespace pilotfish {
namespace {

using Inputs = std::vector<mx::array>;
using Body = std::function<void(const Inputs&, mx::array&)>;

// An operation whose work is one function over its evaluated inputs and its allocated output.
class Operation : public mx::UnaryPrimitive {
 public:
  Operation(mx::Stream stream, const char* name, Body body)
      : UnaryPrimitive(stream), name_(name), body_(std::move(body)) {}

  void eval_cpu(const Inputs& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    auto& encoder = mx::cpu::get_command_encoder(stream());
    Inputs held;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      held.push_back(mx::array::unsafe_weak_copy(input));
    }
    encoder.set_output_array(out);
    encoder.dispatch(
        [body = body_, held = std::move(held), out = mx::array::unsafe_weak_copy(out)]() mutable { body(held, out); });
  }

  void eval_gpu(const Inputs&, mx::array&) override {
    throw std::runtime_error(std::string(name_) + " runs on a CPU stream only");
  }

  const char* name() const override { return name_; }

 private:
  const char* name_;
  Body body_;
};

mx::array make(const char* name, mx::Shape shape, Inputs inputs, mx::StreamOrDevice s, Body body) {
  for (auto& input : inputs) input = mx::contiguous(input, false, s);
  auto primitive = std::make_shared<Operation>(mx::to_stream(s), name, std::move(body));
  return mx::array(std::move(shape), mx::float32, std::move(primitive), std::move(inputs));
}

ScaleType scale_type(const mx::array& scales, Mode mode) {
  if (mode == Mode::nvfp4) return ScaleType::e4m3;
  if (mode != Mode::affine) return ScaleType::e8m0;
  if (scales.dtype() == mx::float16) return ScaleType::f16;
  if (scales.dtype() == mx::bfloat16) return ScaleType::bf16;
  return ScaleType::f32;
}

Mode parse_mode(const std::string& mode) {
  if (mode == "affine") return Mode::affine;
  if (mode == "mxfp4") return Mode::mxfp4;
  if (mode == "mxfp8") return Mode::mxfp8;
  if (mode == "nvfp4") return Mode::nvfp4;
  throw std::invalid_argument("mode is '" + mode + "'; it must be affine, mxfp4, mxfp8 or nvfp4");
}

std::vector<float> group_sums(const float* x, int rows, int k, int group) {
  std::vector<float> sums(size_t(rows) * (k / group));
  for (size_t i = 0; i < sums.size(); ++i) {
    float total = 0;
    for (int j = 0; j < group; ++j) total += x[i * group + j];
    sums[i] = total;
  }
  return sums;
}

constexpr int64_t QMM_GRAIN = 1 << 18;  // weights a thread must have to be worth waking

}  // namespace

mx::array qmm(const mx::array& x, const mx::array& w, const mx::array& scales, const std::optional<mx::array>& biases,
              int group, int bits, const std::string& mode_name, mx::StreamOrDevice s) {
  const Mode mode = parse_mode(mode_name);
  const int rows = x.shape(0), k = x.shape(1), n = w.shape(0);
  Inputs inputs{x, w, scales};
  if (biases) inputs.push_back(*biases);
  return make("PilotfishQmm", {rows, n}, std::move(inputs), s, [=](const Inputs& in, mx::array& out) {
    QmmArgs a{};
    a.x = in[0].data<float>();
    a.w = in[1].data<uint8_t>();
    a.scales = in[2].data<uint8_t>();
    a.scale_type = scale_type(in[2], mode);
    std::vector<float> sums;
    if (in.size() > 3) {
      a.biases = in[3].data<uint8_t>();
      sums = group_sums(a.x, rows, k, group);
      a.sums = sums.data();
    }
    a.out = out.data<float>();
    a.rows = rows, a.n = n, a.k = k, a.group = group, a.bits = bits, a.mode = mode;
    parallel_for(n, std::max<int64_t>(8, QMM_GRAIN / k), [&](int begin, int end) { form().qmm(a, begin, end); });
  });
}

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                   const std::optional<mx::array>& added, mx::StreamOrDevice s) {
  const int dim = x.shape(-1);
  const int rows = x.size() / dim;
  Inputs inputs{x};
  if (weight) inputs.push_back(*weight);
  if (added) inputs.push_back(*added);
  const bool weighted = weight.has_value(), adds = added.has_value();
  return make("PilotfishNorm", x.shape(), std::move(inputs), s, [=](const Inputs& in, mx::array& out) {
    NormArgs a{};
    a.x = in[0].data<float>();
    a.weight = weighted ? in[1].data<float>() : nullptr;
    a.added = adds ? in[weighted ? 2 : 1].data<float>() : nullptr;
    a.out = out.data<float>();
    a.rows = rows, a.dim = dim, a.eps = eps;
    form().norm(a, 0, rows);
  });
}

mx::array geglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s) {
  return make("PilotfishGeglu", gate.shape(), {gate, up}, s, [](const Inputs& in, mx::array& out) {
    form().geglu(in[0].data<float>(), in[1].data<float>(), out.data<float>(), out.size());
  });
}

mx::array rope(const mx::array& x, const mx::array& offset, const mx::array& frequencies, mx::StreamOrDevice s) {
  const int batch = x.shape(0), rows = x.shape(1), heads = x.shape(2), dim = x.shape(3), half = dim / 2;
  return make("PilotfishRope", {batch, heads, rows, dim}, {x, offset, frequencies}, s,
              [=](const Inputs& in, mx::array& out) {
    const float *from = in[0].data<float>(), *frequency = in[2].data<float>();
    const int* start = in[1].data<int>();
    float* to = out.data<float>();
    std::vector<float> cosine(half), sine(half);
    for (int b = 0; b < batch; ++b) {
      for (int i = 0; i < rows; ++i) {
        const float position = float(start[b] + i);
        for (int d = 0; d < half; ++d) {
          cosine[d] = std::cos(position * frequency[d]);
          sine[d] = std::sin(position * frequency[d]);
        }
        for (int h = 0; h < heads; ++h) {
          const float* a = from + ((int64_t(b) * rows + i) * heads + h) * dim;
          float* o = to + ((int64_t(b) * heads + h) * rows + i) * dim;
          for (int d = 0; d < half; ++d) {
            o[d] = a[d] * cosine[d] - a[d + half] * sine[d];
            o[d + half] = a[d + half] * cosine[d] + a[d] * sine[d];
          }
        }
      }
    }
  });
}

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& mask, float scale,
                    mx::StreamOrDevice s) {
  const int batch = q.shape(0), heads = q.shape(1), rows = q.shape(2), dim = q.shape(3);
  const int kv_heads = k.shape(1), slots = k.shape(2);
  return make("PilotfishAttention", {batch, rows, heads * dim}, {q, k, v, mask}, s,
              [=](const Inputs& in, mx::array& out) {
    const int64_t stride = (slots + 7) / 8 * 8, scratch = int64_t(heads / kv_heads) * rows * stride;
    const int64_t work = int64_t(heads) * rows * slots * dim;
    parallel_for(batch * kv_heads, work > (1 << 19) ? 1 : batch * kv_heads, [&](int begin, int end) {
      std::vector<float> scores(scratch);
      for (int i = begin; i < end; ++i) {
        const int b = i / kv_heads;
        AttentionArgs a{};
        a.q = in[0].data<float>() + int64_t(b) * heads * rows * dim;
        a.k = in[1].data<float>() + int64_t(b) * kv_heads * slots * dim;
        a.v = in[2].data<float>() + int64_t(b) * kv_heads * slots * dim;
        a.mask = in[3].data<bool>() + int64_t(b) * rows * slots;
        a.out = out.data<float>() + int64_t(b) * rows * heads * dim;
        a.scores = scores.data();
        a.head_stride = int64_t(slots) * dim;
        a.heads = heads, a.kv_heads = kv_heads, a.rows = rows, a.slots = slots, a.dim = dim, a.scale = scale;
        form().attention(a, i % kv_heads);
      }
    });
  });
}

}  // namespace pilotfish
