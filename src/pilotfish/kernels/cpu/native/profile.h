// Where the time goes, by name, while someone asks; costs one load of a flag otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <utility>

namespace pilotfish {

extern std::atomic<bool> profiling;

void record(const char* name, double seconds);

// Calls and seconds by name since the last call.
std::map<std::string, std::pair<int64_t, double>> take_profile();

class Span {
 public:
  explicit Span(const char* name) : name_(profiling.load(std::memory_order_relaxed) ? name : nullptr) {
    if (name_) start_ = std::chrono::steady_clock::now();
  }
  ~Span() {
    if (name_) record(name_, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  const char* name_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace pilotfish
