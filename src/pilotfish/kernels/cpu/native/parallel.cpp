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

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Pieces of a job are claimed one by one, by the caller as well, so a job never waits for a thread that is still asleep.
// A worker that has just had work looks for more for a moment before it sleeps, giving way to whatever else wants to run:
// the steps of a pass follow one another within microseconds, and waking a thread takes fifty.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) std::thread([this] { work(); }).detach();
  }

  bool try_run(int n, int grain, const std::function<void(int, int)>& body) {
    std::unique_lock<std::mutex> only(one_caller_, std::try_to_lock);
    if (!only.owns_lock()) return false;
    const int pieces = std::min(PIECES * threads_, std::max(1, n / std::max(1, grain)));
    body_ = &body, n_ = n, pieces_ = pieces;
    done_.store(0);
    const uint64_t job = uint64_t(++jobs_) << 32 | uint64_t(pieces) << 16;
    state_.store(job);
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    while (claim_and_run()) {
    }
    for (int spins = 0; done_.load() < pieces; ++spins) spins % 64 == 63 ? give_way() : relax();
    return true;
  }

 private:
  static constexpr int PIECES = 2;      // for each thread: one that comes late still finds something to do
  static constexpr int LOOKS = 64 * 40;  // tens of microseconds

  static void give_way() { std::this_thread::yield(); }

  // Takes the next piece of the job at hand, if there is one. The claim says which job: it cannot end before the piece.
  bool claim_and_run() {
    uint64_t state = state_.load();
    int index;
    do {
      index = int(state & 0xffff);
      if (index >= int(state >> 16 & 0xffff)) return false;
    } while (!state_.compare_exchange_weak(state, state + 1));
    const int begin = int(int64_t(n_) * index / pieces_), end = int(int64_t(n_) * (index + 1) / pieces_);
    if (begin < end) (*body_)(begin, end);
    done_.fetch_add(1);
    return true;
  }

  void work() {
    while (true) {
      for (int looks = 0; looks < LOOKS; ++looks) {
        if (claim_and_run()) looks = 0;
        looks % 64 == 63 ? give_way() : relax();
      }
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [this] {
        const uint64_t state = state_.load();
        return (state & 0xffff) < (state >> 16 & 0xffff);
      });
      sleeping_.fetch_sub(1);
    }
  }

  const int threads_;
  std::mutex one_caller_, mutex_;
  std::condition_variable wake_;
  const std::function<void(int, int)>* body_ = nullptr;
  int n_ = 0, pieces_ = 0;
  uint32_t jobs_ = 0;
  std::atomic<uint64_t> state_{0};  // job, its pieces, the next piece
  std::atomic<int> done_{0}, sleeping_{0};
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
