#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "adjust.h"
#include "attend.h"
#include "choose.h"
#include "parallel.h"
#include "profile.h"
#include "project.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pilotfish;
using Optional = std::optional<mx::array>;

namespace {

struct Choices {
  std::vector<Choice> rows;
  std::vector<int> suppress;
};

struct Adjustments {
  std::vector<Adjustment> rows;
};

void bind_adjustments(nb::module_& m) {
  using Row = std::tuple<float, float, float, int, std::vector<std::pair<int, float>>, std::vector<int>, int, int, int, int>;
  nb::class_<Adjustments>(m, "Adjustments")
      .def("__init__",
           [](Adjustments* self, const std::vector<Row>& rows) {
             new (self) Adjustments{};
             for (const auto& row : rows)
               self->rows.push_back(std::apply([](const auto&... values) { return Adjustment{values...}; }, row));
           },
           "rows"_a);
  m.def("adjust",
        [](const mx::array& logits, const mx::array& tokens, const mx::array& open, const mx::array& drafts, int first,
           const mx::array& length, Optional ids, const Adjustments& adjustments, int vocabulary) {
          return adjust(logits, tokens, open, drafts, first, length, ids, adjustments.rows, vocabulary, {});
        },
        "logits"_a, "tokens"_a, "is_open"_a, "drafts"_a, "first"_a, "length"_a, "ids"_a.none(), "adjustments"_a,
        "vocabulary"_a);
  m.def("advance",
        [](const mx::array& tokens, const mx::array& open, const mx::array& drafts, const mx::array& accepted,
           const Adjustments& adjustments) { return advance(tokens, open, drafts, accepted, adjustments.rows, {}); },
        "tokens"_a, "is_open"_a, "drafts"_a, "accepted"_a, "adjustments"_a);
  m.def("mask",
        [](const mx::array& logits, const mx::array& bits, Optional ids) { return mask(logits, bits, ids, {}); },
        "logits"_a, "bits"_a, "ids"_a.none());
  m.def("logprobs",
        [](const mx::array& logits, const mx::array& tokens, int k) { return logprobs(logits, tokens, k, {}); },
        "logits"_a, "tokens"_a, "k"_a);
}

// Keeps what Python built from a named tuple of arrays and numbers, so that it is unpacked once, not in every call.
void bind_weights(nb::module_& m) {
  nb::class_<Weights>(m, "Weights")
      .def("__init__",
           [](Weights* self, mx::array w, Optional scales, Optional biases, int group, int bits, std::string mode,
              Optional global_scale) { new (self) Weights{w, scales, biases, group, bits, mode, global_scale}; },
           "w"_a, "scales"_a.none(), "biases"_a.none(), "group_size"_a, "bits"_a, "mode"_a, "global_scale"_a.none());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "pilotfish's CPU kernels as MLX operations; the Python functions around them check arguments.";
  nb::set_leak_warnings(false);  // weights live as long as the modules that hold them, at exit too
  bind_weights(m);
  bind_adjustments(m);
  m.def("project",
        [](const mx::array& x, const std::vector<const Weights*>& matrices, Optional norm, float eps, bool gated,
           Optional times, int part, Optional residual, Optional after, Optional scale, float cap) {
          std::vector<Weights> all;
          for (const auto* w : matrices) all.push_back(*w);
          return project(x, all, {norm, eps, gated, times, part, residual, after, scale, cap}, {});
        },
        "x"_a, "matrices"_a, "norm"_a.none() = nb::none(), "eps"_a = 0.0f, "gated"_a = false,
        "times"_a.none() = nb::none(), "part"_a = 0, "residual"_a.none() = nb::none(), "after"_a.none() = nb::none(),
        "scale"_a.none() = nb::none(), "cap"_a = 0.0f);
  m.def("gather", [](const mx::array& x, const mx::array& indices, const Weights& stack) { return gather(x, indices, stack, {}); },
        "x"_a, "indices"_a, "stack"_a);
  m.def("lookup",
        [](const mx::array& ids, const Weights& table, int k, float scale, mx::Dtype dtype) {
          return lookup(ids, table, k, scale, dtype, {});
        },
        "ids"_a, "table"_a, "k"_a, "scale"_a, "dtype"_a);
  m.def("rms_norm", [](const mx::array& x, Optional weight, float eps) { return rms_norm(x, weight, eps, {}); }, "x"_a,
        "weight"_a.none(), "eps"_a);
  m.def("heads",
        [](const mx::array& x, const mx::array& q_weight, Optional k_weight, const mx::array& offset,
           const mx::array& frequencies, int dim, int kv_heads, bool shared, float eps) {
          return heads(x, q_weight, k_weight, offset, frequencies, dim, kv_heads, shared, eps, {});
        },
        "x"_a, "q_weight"_a, "k_weight"_a.none(), "offset"_a, "frequencies"_a, "dim"_a, "kv_heads"_a, "shared"_a, "eps"_a);
  m.def("write",
        [](const mx::array& keys, const mx::array& values, const mx::array& new_keys, const mx::array& new_values,
           const mx::array& length, Optional start, int ring) {
          return write(keys, values, new_keys, new_values, length, start, ring, {});
        },
        "keys"_a, "values"_a, "new_keys"_a, "new_values"_a, "length"_a, "start"_a.none() = nb::none(), "ring"_a = 0);
  m.def("attention",
        [](const mx::array& q, const Arrays& keys, const Arrays& values, const mx::array& length, Optional start,
           int64_t first, int64_t window, bool ring, float scale) {
          return attention(q, keys, values, length, start, first, window, ring, scale, {});
        },
        "q"_a, "keys"_a, "values"_a, "length"_a, "start"_a.none() = nb::none(), "first"_a = 0, "window"_a, "ring"_a,
        "scale"_a);
  m.def("blend",
        [](const mx::array& projected, const mx::array& own, const mx::array& weight, float eps, float scale,
           float factor) { return blend(projected, own, weight, eps, scale, factor, {}); },
        "projected"_a, "own"_a, "weight"_a, "eps"_a, "scale"_a, "factor"_a);
  m.def("concatenate", [](const Arrays& parts) { return concatenate(parts, {}); }, "parts"_a);
  m.def("fuse", &fuse, "outputs"_a);
  nb::class_<Choices>(m, "Choices")
      .def("__init__",
           [](Choices* self, const std::vector<std::tuple<float, float, float, int, uint32_t, uint32_t>>& rows,
              std::vector<int> suppress) {
             new (self) Choices{{}, std::move(suppress)};
             for (const auto& [temperature, top_p, log_min_p, top_k, first, second] : rows)
               self->rows.push_back({temperature, top_p, log_min_p, top_k, {first, second}});
           },
           "rows"_a, "suppress"_a);
  m.def("choose",
        [](const mx::array& logits, const mx::array& length, int shift, Optional ids, const Choices& choices) {
          return choose(logits, length, shift, ids, choices.rows, choices.suppress, {});
        },
        "logits"_a, "length"_a, "shift"_a, "ids"_a.none(), "choices"_a);
  m.def("reject",
        [](const mx::array& logits, const mx::array& length, const mx::array& drafts, const Arrays& offered,
           const Arrays& ids, const Choices& text, const Choices& accept) {
          return reject(logits, length, drafts, offered, ids, text.rows, accept.rows, text.suppress, {});
        },
        "logits"_a, "length"_a, "drafts"_a, "offered"_a, "ids"_a, "text"_a, "accept"_a);
  m.def("take_copied_bytes", &take_copied_bytes);
  m.def("set_profiling", [](bool on) { profiling = on; }, "on"_a);
  m.def("take_profile", &take_profile);
  m.def("read_bytes", [](const mx::array& a) {
    // Reads an evaluated array once, as fast as this machine can: what the products are measured against.
    std::atomic<uint64_t> all{0};
    const auto* words = a.data<uint64_t>();
    nb::gil_scoped_release release;
    parallel_for(a.nbytes() / 64, 1 << 14, [&](int begin, int end) {
      uint64_t sums[8] = {};
      for (int64_t i = begin; i < end; ++i)
        for (int j = 0; j < 8; ++j) sums[j] ^= words[i * 8 + j];
      for (uint64_t s : sums) all ^= s;
    });
    return all.load();
  }, "a"_a);
  m.def("form", [] { return std::string(form().name); });
  m.def("forms", [] {
    std::vector<std::string> names;
    for (const Form* f : forms()) names.push_back(f->name);
    return names;
  });
  m.def("use_form", &use_form, "name"_a);
  m.def("threads", &thread_count);
}
