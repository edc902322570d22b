// Refuses threads of this process, as a system does at its limit of processes. Replaces
// pthread_create(): one source file of a test program includes this header.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace xffl::test {

/// The system grants `granted` threads and refuses the next `refused` ones, for the object's life.
class RefusedThreads {
 public:
  RefusedThreads(int granted, int refused) {
    count() = 0;
    first() = granted;
    end() = granted + refused;
  }
  ~RefusedThreads() { end() = 0; }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;

  /// Whether a thread has been refused.
  bool any() const { return count() > first(); }

  /// Counts a request; true: refuse it.
  static bool refuses() {
    const int index = count()++;
    return index >= first() && index < end();
  }

 private:
  static std::atomic<int>& count() {
    static std::atomic<int> value = 0;
    return value;
  }
  static std::atomic<int>& first() {
    static std::atomic<int> value = 0;
    return value;
  }
  static std::atomic<int>& end() {
    static std::atomic<int> value = 0;
    return value;
  }
};

}  // namespace xffl::test

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*routine)(void*), void* argument) noexcept {
  if (xffl::test::RefusedThreads::refuses()) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, routine, argument);
}
