// The SFTP client against a server that answers with the input.
//
// How it works: this file defines the functions of Connection and Channel that the client calls, so
// the linker takes them instead of libssh's connection. The first three bytes choose the operation,
// the server's extensions, the order of the answers and the size of the pieces. In the raw mode the
// rest is the stream of the server. Else it is a list of answers {u8 type, u16 length, payload}, to
// which the server adds the id of a request.
#include <algorithm>
#include <deque>
#include <set>

#include "fuzz.h"
#include "sftp.h"

using namespace xffl;

namespace {

constexpr std::string_view kTree = "/work/r0001", kFile = "/work/r0001/update.bin";
constexpr size_t kFileBytes = 200'000;
constexpr uint8_t kInit = 1, kRemove = 13, kRmdir = 15;

class Server {
 public:
  void restart(fuzz::Choices input, uint8_t options, uint8_t piece) {
    input_ = input;
    raw_ = (options & 1) != 0;
    newest_first_ = (options & 2) != 0;
    extensions_ = options >> 2;
    piece_ = piece == 255 ? SIZE_MAX : 1 + size_t{piece};
    stream_.clear();
    open_ids_.clear();
    num_requests_ = 0;
  }

  void receive(std::string_view packet) {
    remote::WireReader in(packet, "request");
    fuzz::expect(in.u32() == in.rest().size(), "a request has its length");
    fuzz::expect(++num_requests_ < 100'000, "the client ends");
    const uint8_t type = in.u8();
    if (type == kInit) {
      if (!raw_) stream_ += version();
      return;
    }
    open_ids_.push_back(in.u32());
    if (type == kRemove || type == kRmdir) check_inside(in.string());
  }

  size_t answer(std::span<std::byte> out) {
    if (raw_ && stream_.empty()) stream_ = input_.take(piece_);
    if (!raw_ && stream_.empty()) make_answer();
    const size_t count = std::min({out.size(), stream_.size(), piece_});
    std::transform(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(count),
                   out.begin(), [](char c) { return static_cast<std::byte>(c); });
    stream_.erase(0, count);
    return count;
  }

 private:
  // No answer makes the client remove a path outside the tree.
  static void check_inside(std::string_view path) {
    const bool inside = path == kTree || (path.starts_with(kTree) && path[kTree.size()] == '/');
    const std::string slashed = std::string(path) + "/";
    fuzz::expect(inside && slashed.find("/../") == std::string::npos &&
                     slashed.find("/./") == std::string::npos,
                 "only paths of the tree are removed", path);
  }

  std::string version() const {
    remote::WireWriter body;
    body.u8(2).u32(3);
    if (extensions_ & 1) body.string("posix-rename@openssh.com").string("1");
    if (extensions_ & 2) body.string("fsync@openssh.com").string("1");
    if (extensions_ & 4) body.string("statvfs@openssh.com").string("2");
    return remote::WireWriter().string(body.bytes()).bytes();
  }

  // Leaves the stream empty, its end, without an open request or further input.
  void make_answer() {
    if (open_ids_.empty() || input_.rest().empty()) return;
    const auto id = newest_first_ ? std::prev(open_ids_.end()) : open_ids_.begin();
    remote::WireWriter body;
    body.u8(input_.byte()).u32(*id);
    open_ids_.erase(id);
    const size_t low = input_.byte(), high = input_.byte();
    const std::string_view payload = input_.take(high << 8 | low);
    stream_ = remote::WireWriter().string(body.bytes() + std::string(payload)).bytes();
  }

  fuzz::Choices input_{nullptr, 0};
  bool raw_ = false, newest_first_ = false;
  unsigned extensions_ = 0;
  size_t piece_ = 1;
  std::string stream_;
  std::deque<uint32_t> open_ids_;
  size_t num_requests_ = 0;
};

Server server;

void check_names(const std::vector<std::string>& names) {
  fuzz::expect(std::set(names.begin(), names.end()).size() == names.size(), "names differ");
  for (const std::string& name : names)
    fuzz::expect(
        !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos,
        "a name is an entry of the folder", name);
}

void run_operation(remote::Sftp& sftp, uint8_t choice) {
  const RemotePath tree{std::string(kTree)}, file{std::string(kFile)};
  std::vector<std::byte> bytes(300);
  switch (choice % 11) {
    case 0:
      return check_names(sftp.list(tree));
    case 1:
      sftp.stat(file);
      return;
    case 2:
      fuzz::expect(sftp.read(file, 10, bytes) <= bytes.size(), "a read fits its buffer");
      return;
    case 3:
      return sftp.write(file, 10, bytes);
    case 4:
      return sftp.sync(file);
    case 5:
      return sftp.rename(file, tree / "update");
    case 6:
      return sftp.make_dirs(tree);
    case 7:
      return sftp.remove_tree(tree, {});
    case 8:
      sftp.free_bytes(tree);
      return;
    case 9: {
      size_t received = 0;
      const auto count = [&](std::span<const std::byte> part) { received += part.size(); };
      const uint64_t given = sftp.download(file, 7, kFileBytes, count, {});
      fuzz::expect(given == received && given <= kFileBytes, "a download gives no more bytes");
      return;
    }
    default: {
      const auto zeros = [](uint64_t offset, std::span<std::byte> out) {
        fuzz::expect(offset >= 7 && offset + out.size() <= 7 + kFileBytes, "the asked range");
        std::fill(out.begin(), out.end(), std::byte{0});
      };
      return sftp.upload(file, 7, 7 + kFileBytes, zeros, {});
    }
  }
}

}  // namespace

namespace xffl::remote {

void SessionDeleter::operator()(ssh_session) const {}

Connection::Connection(SessionPtr session, std::string name, SshTimeouts timeouts,
                       std::shared_ptr<void> below)
    : name_(std::move(name)),
      timeouts_(timeouts),
      below_(std::move(below)),
      session_(std::move(session)) {}
Connection::~Connection() = default;
bool Connection::alive() const { return true; }
void Connection::with(const std::function<void(ssh_session)>& step) { step(nullptr); }

void Channel::Free::operator()(ssh_channel) const {}
Channel::~Channel() { handle_.reset(); }
Channel Channel::sftp(std::shared_ptr<Connection> connection, Deadline, const std::stop_token&) {
  Handle none(nullptr, Free{connection.get(), false});
  return Channel(std::move(connection), std::move(none));
}
bool Channel::at_end() const { return false; }
bool Channel::takes_input() const { return true; }
size_t Channel::read(std::span<std::byte> out, Deadline, const std::stop_token&, const std::string&,
                     size_t) {
  return server.answer(out);
}
void Channel::write(std::span<const std::byte> bytes, Deadline, const std::stop_token&,
                    const std::string&) {
  server.receive({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace xffl::remote

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Choices choices(data, size);
  const uint8_t operation = choices.byte(), options = choices.byte(), piece = choices.byte();
  server.restart(choices, options, piece);
  fuzz::accepted([&] {
    const auto connection =
        std::make_shared<remote::Connection>(nullptr, "alba", remote::SshTimeouts{});
    remote::Sftp sftp(connection, {});
    run_operation(sftp, operation);
    return true;
  });
  return 0;
}
