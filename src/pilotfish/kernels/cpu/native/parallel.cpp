#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__APPLE__)
#include <pthread.h>
#endif

namespace pilotfish {
namespace {

int count_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

class Pool {
 public:
  explicit Pool(int threads) : pieces_(threads) {
    for (int i = 1; i < threads; ++i) std::thread([this, i] { work(i); }).detach();
  }

  bool try_run(int n, int grain, const std::function<void(int, int)>& body) {
    std::unique_lock<std::mutex> only(one_caller_, std::try_to_lock);
    if (!only.owns_lock()) return false;
    int pieces = std::min(pieces_, std::max(1, n / std::max(1, grain)));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body, n_ = n, active_ = pieces, pending_ = pieces - 1, ++generation_;
    }
    if (pieces > 1) wake_.notify_all();
    run_piece(0, pieces, n, body);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    return true;
  }

 private:
  static void run_piece(int i, int pieces, int n, const std::function<void(int, int)>& body) {
    int begin = static_cast<int>(static_cast<int64_t>(n) * i / pieces);
    int end = static_cast<int>(static_cast<int64_t>(n) * (i + 1) / pieces);
    if (begin < end) body(begin, end);
  }

  void work(int i) {
    uint64_t seen = 0;
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (i >= active_) continue;
      auto [body, n, pieces] = std::tuple(body_, n_, active_);
      lock.unlock();
      run_piece(i, pieces, n, *body);
      lock.lock();
      if (--pending_ == 0) done_.notify_one();
    }
  }

  const int pieces_;
  std::mutex one_caller_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int, int)>* body_ = nullptr;
  int n_ = 0, active_ = 0, pending_ = 0;
  uint64_t generation_ = 0;
};

std::atomic<Pool*> pool{nullptr};
std::mutex making;

// A forked child has no workers: it forgets the pool (and leaks it, since its locks are in an unknown state).
void forget() {
  pool = nullptr;
  new (&making) std::mutex;
}

Pool& get_pool() {
  if (Pool* p = pool.load()) return *p;
  std::lock_guard<std::mutex> lock(making);
  if (Pool* p = pool.load()) return *p;
  static bool registered = (pthread_atfork(nullptr, nullptr, forget), true);
  (void)registered;
  Pool* made = new Pool(thread_count());
  pool = made;
  return *made;
}

}  // namespace

int thread_count() {
  static const int count = [] {
    const char* asked = std::getenv("PILOTFISH_THREADS");
    int n = asked ? std::atoi(asked) : 0;
    return n > 0 ? n : count_processors();
  }();
  return count;
}

void parallel_for(int n, int grain, const std::function<void(int, int)>& body) {
  if (n <= grain || thread_count() == 1 || !get_pool().try_run(n, grain, body)) body(0, n);
}

}  // namespace pilotfish
