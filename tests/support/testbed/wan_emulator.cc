// Emulates a wide-area network between this machine and a facility: delay, rate, loss, a cut cable.
//
// How it works: two TUN devices, one in this network namespace and one in the facility's, and a
// thread per direction. A thread holds every packet for its transmission time (rate) and its
// propagation time (delay). The queue holds one bandwidth-delay product and `queue_kb` more; like a
// router, it drops packets at a full tail. Packets of up to 64 KiB (GSO) pass whole: a user-space
// link needs them for 1 Gbit/s and more. With loss the kernel segments them to the MTU, so that one
// loss is one packet. The emulator rereads the settings file after each change.
//
//   xffl-wan-emulator PID NAME-HERE NAME-THERE SETTINGS-FILE
//   settings: "delay_ms rate_mbit loss_percent queue_kb cut", one way; rate 0 is unlimited, cut 1
//   drops all
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

struct Link {
  std::atomic<double> delay_ms = 0, rate_mbit = 0, loss_percent = 0, queue_kb = 4096;
  std::atomic<bool> cut = false;
};

struct Packet {
  Clock::time_point due;
  std::vector<char> bytes;
};

[[noreturn]] void fail(const std::string& action) {
  std::cerr << "wan_emulator: " << action << ": " << std::strerror(errno) << "\n";
  std::exit(1);
}

int open_tun(const char* name) {
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("cannot open /dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(fd, TUNSETIFF, &request) < 0) fail(std::string("cannot create ") + name);
  return fd;
}

void allow_large_packets(int fd, bool allow) {
  const unsigned offload = allow ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0;
  if (::ioctl(fd, TUNSETOFFLOAD, offload) < 0) fail("cannot set TUNSETOFFLOAD");
}

// Forwards packets of one direction, endlessly.
class Direction {
 public:
  Direction(int in, int out, const Link& link, unsigned seed)
      : in_(in), out_(out), link_(link), random_(seed), buffer_(1 << 17) {}

  void carry() {
    for (;;) {
      deliver_due();
      wait();
      take_in();
    }
  }

 private:
  void deliver_due() {
    const Clock::time_point now = Clock::now();
    while (!queue_.empty() && queue_.front().due <= now) {
      const std::vector<char>& bytes = queue_.front().bytes;
      if (::write(out_, bytes.data(), bytes.size()) < 0 && errno == EAGAIN) return;
      queued_bytes_ -= static_cast<double>(bytes.size());
      queue_.pop_front();
    }
  }

  void wait() {
    timespec ts{};
    if (!queue_.empty()) {
      // Never zero: while the far device is full, its packet stays due.
      const auto left =
          std::max<nanoseconds>(queue_.front().due - Clock::now(), nanoseconds(20'000));
      ts = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    }
    pollfd readable{in_, POLLIN, 0};
    ::ppoll(&readable, 1, queue_.empty() ? nullptr : &ts, nullptr);
  }

  void take_in() {
    for (int i = 0; i < 64; ++i) {
      const ssize_t size = ::read(in_, buffer_.data(), buffer_.size());
      if (size <= 0) return;
      if (link_.cut || std::uniform_real_distribution(0.0, 100.0)(random_) < link_.loss_percent)
        continue;
      const double delay_ms = link_.delay_ms, rate_mbit = link_.rate_mbit;
      const double capacity = link_.queue_kb * 1024 + rate_mbit * 125 * delay_ms;
      if (queued_bytes_ + static_cast<double>(size) > capacity && rate_mbit > 0) continue;
      wire_free_ = std::max(wire_free_, Clock::now());
      if (rate_mbit > 0)
        wire_free_ +=
            nanoseconds(static_cast<int64_t>(static_cast<double>(size) * 8000 / rate_mbit));
      const auto flight = nanoseconds(static_cast<int64_t>(delay_ms * 1e6));
      queue_.push_back({wire_free_ + flight, {buffer_.data(), buffer_.data() + size}});
      queued_bytes_ += static_cast<double>(size);
    }
  }

  const int in_, out_;
  const Link& link_;
  std::minstd_rand random_;
  std::vector<char> buffer_;
  std::deque<Packet> queue_;
  double queued_bytes_ = 0;
  Clock::time_point wire_free_;
};

bool load(const char* path, Link& link) {
  std::ifstream file(path);
  double delay_ms, rate_mbit, loss_percent, queue_kb;
  int cut;
  if (!(file >> delay_ms >> rate_mbit >> loss_percent >> queue_kb >> cut)) return false;
  link.delay_ms = delay_ms;
  link.rate_mbit = rate_mbit;
  link.loss_percent = loss_percent;
  link.queue_kb = queue_kb;
  link.cut = cut != 0;
  return true;
}

std::string contents(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: xffl-wan-emulator PID NAME-HERE NAME-THERE SETTINGS-FILE\n";
    return 2;
  }
  const int home = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there =
      ::open(("/proc/" + std::string(argv[1]) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || there < 0) fail("cannot open a network namespace");
  const int here_tun = open_tun(argv[2]);
  if (::setns(there, CLONE_NEWNET) != 0) fail("cannot enter the facility's network namespace");
  const int there_tun = open_tun(argv[3]);
  if (::setns(home, CLONE_NEWNET) != 0) fail("cannot return to the network namespace");

  Link link;
  std::string seen = contents(argv[4]);
  const auto apply = [&] {
    if (!load(argv[4], link)) std::cerr << "wan_emulator: ignores unreadable settings\n";
    for (const int fd : {here_tun, there_tun}) allow_large_packets(fd, link.loss_percent <= 0);
  };
  apply();
  std::thread([&] { Direction(here_tun, there_tun, link, 1).carry(); }).detach();
  std::thread([&] { Direction(there_tun, here_tun, link, 2).carry(); }).detach();
  std::cout << "ready" << std::endl;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string now = contents(argv[4]);
    if (now.empty() || now == seen) continue;
    seen = now;
    apply();
  }
}
