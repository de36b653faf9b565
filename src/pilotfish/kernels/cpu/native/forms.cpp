#include "forms.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace pilotfish {
namespace {

const Form* find(const std::string& name) {
  for (const Form* f : forms())
    if (name == f->name) return f;
  return nullptr;
}

std::atomic<const Form*>& chosen() {
  static std::atomic<const Form*> form = [] {
    const char* asked = std::getenv("PILOTFISH_FORM");
    const Form* found = asked ? find(asked) : nullptr;
    return found ? found : forms().front();
  }();
  return form;
}

}  // namespace

const std::vector<const Form*>& forms() {
  static const std::vector<const Form*> all = [] {
    std::vector<const Form*> usable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
      usable.push_back(&avx2_form);
#endif
    usable.push_back(&portable_form);
    return usable;
  }();
  return all;
}

const Form& form() { return *chosen().load(std::memory_order_relaxed); }

void use_form(const std::string& name) {
  const Form* found = find(name);
  if (!found) throw std::invalid_argument("this processor cannot run the form '" + name + "'");
  chosen() = found;
}

}  // namespace pilotfish
