#include "profile.h"

#include <mutex>

namespace pilotfish {
namespace {

std::mutex mutex;
std::map<std::string, std::pair<int64_t, double>> totals;

}  // namespace

std::atomic<bool> profiling{false};

void record(const char* name, double seconds) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& [calls, total] = totals[name];
  ++calls, total += seconds;
}

std::map<std::string, std::pair<int64_t, double>> take_profile() {
  std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(totals, {});
}

}  // namespace pilotfish
