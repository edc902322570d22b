// What Debian 11's glibc and libstdc++ lack, for the programs of the preset bundle-cpu.
//
// How it works: the programs are compiled with this machine's C++ headers, linked with Debian 11's
// libraries (glibc 2.31, libstdc++ of GCC 10, which the bundle ships) and have to start with glibc
// 2.28, that of RHEL 8. exp, log and pow got new versions in 2.29, which differ only in errno: the
// linker replaces each call, also in static libraries, by __wrap_NAME, which calls the first
// version. Functions that are newer than these libraries are defined here.
// scripts/check_package.py reads the finished files and reports any other newer symbol.
#include <pthread.h>
#include <time.h>

#include <cerrno>
#include <exception>
#include <new>
#include <sstream>

#ifdef __aarch64__
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

extern "C" {

// The copy constructor and the destructor of std::exception_ptr in the library; the versions keep
// the linker from taking the inline functions of the headers.
void library_copy(void* to, const std::exception_ptr* from) noexcept;
void library_destroy(std::exception_ptr* one) noexcept;
__asm__(".symver library_copy, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
__asm__(".symver library_destroy, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

double first_exp(double);
double first_log(double);
double first_pow(double, double);
__asm__(".symver first_exp, exp@" FIRST_VERSION);
__asm__(".symver first_log, log@" FIRST_VERSION);
__asm__(".symver first_pow, pow@" FIRST_VERSION);

double __wrap_exp(double x) { return first_exp(x); }
double __wrap_log(double x) { return first_log(x); }
double __wrap_pow(double x, double y) { return first_pow(x, y); }

// Glibc 2.30. std::condition_variable::wait_until() of a steady clock calls it. A jump of the wall
// clock makes the wait shorter or longer; libstdc++ repeats a wait that ended early.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  timespec now, wall;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &wall) != 0) return EINVAL;
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1'000'000'000;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= 1'000'000'000) {
    wall.tv_nsec -= 1'000'000'000;
    ++wall.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}
}

namespace std {

// GLIBCXX_3.4.29.
void __throw_bad_array_new_length() { throw std::bad_array_new_length(); }
template basic_stringbuf<char>::__string_type basic_stringbuf<char>::str() const&;
template basic_stringbuf<char>::basic_stringbuf(__string_type&&, ios_base::openmode);
template basic_istringstream<char>::basic_istringstream(__string_type&&, ios_base::openmode);

// CXXABI_1.3.13. A copy that is never destroyed leaves the count one higher.
void __exception_ptr::exception_ptr::_M_addref() noexcept {
  alignas(exception_ptr) char copy[sizeof(exception_ptr)];
  library_copy(copy, this);
}
void __exception_ptr::exception_ptr::_M_release() noexcept { library_destroy(this); }

}  // namespace std
