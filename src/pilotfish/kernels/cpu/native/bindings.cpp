#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "forms.h"
#include "operations.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, m) {
  m.doc() = "pilotfish's CPU kernels as MLX operations; the Python functions around them check arguments.";
  m.def("qmm", &pilotfish::qmm, "x"_a, "w"_a, "scales"_a, "biases"_a.none(), "group_size"_a, "bits"_a, "mode"_a,
        nb::kw_only(), "stream"_a = nb::none());
  m.def("rms_norm", &pilotfish::rms_norm, "x"_a, "weight"_a.none(), "eps"_a, "added"_a.none() = nb::none(),
        nb::kw_only(), "stream"_a = nb::none());
  m.def("geglu", &pilotfish::geglu, "gate"_a, "up"_a, nb::kw_only(), "stream"_a = nb::none());
  m.def("rope", &pilotfish::rope, "x"_a, "offset"_a, "frequencies"_a, nb::kw_only(), "stream"_a = nb::none());
  m.def("attention", &pilotfish::attention, "q"_a, "k"_a, "v"_a, "mask"_a, "scale"_a, nb::kw_only(),
        "stream"_a = nb::none());
  m.def("form", [] { return std::string(pilotfish::form().name); });
  m.def("threads", &pilotfish::thread_count);
}
