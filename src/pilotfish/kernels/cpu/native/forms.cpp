#include "forms.h"

#include <cstdlib>
#include <cstring>

namespace pilotfish {

const Form& form() {
  static const Form& chosen = []() -> const Form& {
    const char* asked = std::getenv("PILOTFISH_FORM");
    if (asked && !std::strcmp(asked, "portable")) return portable_form;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return avx2_form;
#endif
    return portable_form;
  }();
  return chosen;
}

}  // namespace pilotfish
