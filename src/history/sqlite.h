// The few parts of SQLite that the journal needs, with errors that name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace xffl::history {

/// Ends what is said of a damaged database.
inline constexpr std::string_view kRepairAdvice =
    "; `xffl journal repair` makes it again from its mirror";

class Database {
 public:
  /// Opens an existing file for reading and writing (for reading when that is all it permits).
  /// Throws kNotFound, kCorrupt, kIo.
  explicit Database(const std::filesystem::path& path);
  /// For reading where nothing can be written, not even SQLite's locks: nobody else may be writing.
  struct Immutable {};
  Database(const std::filesystem::path& path, Immutable);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void exec(const char* sql);
  int64_t integer(const char* sql);   // the first column of the first row
  std::string text(const char* sql);  // likewise
  bool in_transaction() const;
  /// The last call failed because the disk did, in a way that leaves the file's state unknown (a
  /// full disk does not).
  bool disk_failed() const;

  sqlite3* handle() const { return handle_; }
  const std::filesystem::path& path() const { return path_; }
  /// kCorrupt for a damaged database, kIo for what the operating system refused, else kInternal.
  [[noreturn]] void fail(std::string_view doing) const;

 private:
  void open(const std::string& name, int flags);

  std::filesystem::path path_;
  sqlite3* handle_ = nullptr;
};

class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int index, int64_t value);
  void bind(int index, std::string_view value);
  /// True while there is a row.
  bool step();

  int64_t integer(int column) const;
  std::string text(int column) const;

 private:
  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace xffl::history
