#include "sqlite.h"

#include <sqlite3.h>

#include <cstdio>

#include "xffl/base/error.h"

namespace xffl::history {

namespace {

constexpr int kBusyTimeoutMs = 10'000;  // only readers and their checkpoints can be in the way

ErrorKind kind_of(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
      return ErrorKind::kCorrupt;
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOLFS:
      return ErrorKind::kIo;
    default:
      return ErrorKind::kInternal;
  }
}

std::string_view advice(int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return "; free space there, then run again";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "; another program holds the database: close it, then run again";
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return "; check the permissions of the folder and of the file";
    default:
      return "";
  }
}

}  // namespace

Database::Database(const std::filesystem::path& path) : path_(path) {
  if (!std::filesystem::exists(path))
    throw Error(ErrorKind::kNotFound, "there is no journal at " + path.string());
  open(path.string(), SQLITE_OPEN_READWRITE);
}

Database::Database(const std::filesystem::path& path, Immutable) : path_(path) {
  std::string name = "file:";
  for (const char c : path.string()) {
    char escaped[4];
    std::snprintf(escaped, sizeof escaped, "%%%02X", static_cast<unsigned char>(c));
    name += std::string_view("?#%").find(c) == std::string_view::npos ? std::string(1, c) : escaped;
  }
  open(name + "?immutable=1", SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
}

void Database::open(const std::string& name, int flags) {
  if (sqlite3_open_v2(name.c_str(), &handle_, flags | SQLITE_OPEN_FULLMUTEX, nullptr) !=
      SQLITE_OK) {
    const std::string why = handle_ != nullptr ? sqlite3_errmsg(handle_) : "out of memory";
    sqlite3_close(handle_);
    throw Error(ErrorKind::kIo, "cannot open the journal " + path_.string() + ": " + why);
  }
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
  // A damaged schema must not run code of its own, and damage must not be papered over.
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
}

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::fail(std::string_view doing) const {
  const int code = sqlite3_extended_errcode(handle_);
  const ErrorKind kind = kind_of(code);
  const std::string detail =
      std::string(sqlite3_errmsg(handle_)) + " (SQLite error " + std::to_string(code) + ")";
  if (kind == ErrorKind::kCorrupt)
    throw Error(kind, "the journal " + path_.string() + " is damaged: " + detail +
                          std::string(kRepairAdvice));
  throw Error(kind, "cannot " + std::string(doing) + " the journal " + path_.string() + ": " +
                        detail + std::string(advice(code)));
}

void Database::exec(const char* sql) {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail("use");
}

int64_t Database::integer(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.text(0) : "";
}

bool Database::in_transaction() const { return sqlite3_get_autocommit(handle_) == 0; }

bool Database::disk_failed() const { return (sqlite3_errcode(handle_) & 0xff) == SQLITE_IOERR; }

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  if (sqlite3_prepare_v2(database.handle(), sql.data(), static_cast<int>(sql.size()), &statement_,
                         nullptr) != SQLITE_OK)
    database.fail("read");
}

Statement::~Statement() { sqlite3_finalize(statement_); }

void Statement::bind(int index, int64_t value) {
  if (sqlite3_bind_int64(statement_, index, value) != SQLITE_OK) database_.fail("write to");
}

void Statement::bind(int index, std::string_view value) {
  // The caller's text outlives step(): no copy.
  if (sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_STATIC,
                          SQLITE_UTF8) != SQLITE_OK)
    database_.fail("write to");
}

bool Statement::step() {
  switch (sqlite3_step(statement_)) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      database_.fail(sqlite3_stmt_readonly(statement_) != 0 ? "read" : "write to");
  }
}

int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Statement::text(int column) const {
  const unsigned char* text = sqlite3_column_text(statement_, column);
  const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_, column));
  std::string copy(size, '\0');
  for (size_t i = 0; i < size; ++i) copy[i] = static_cast<char>(text[i]);
  return copy;
}

}  // namespace xffl::history
