// A ledger for users and programs. Pure: the same ledger gives the same bytes.
#pragma once

#include <string>
#include <vector>

#include "xffl/base/json.h"
#include "xffl/usage/ledger.h"

namespace xffl::usage {

/// "12.3": hours of a number of seconds, with two digits below ten hours.
std::string hours_text(double seconds);
/// The hours, "not known" when no row of the sum is known, or the hours with a "+" when some rows
/// are not known.
std::string hours_text(const Amount& amount);

/// A sum's row of a table: starts, node-hours, GPU-hours, hours by outcome, sources.
struct TableRow {
  std::string name;
  std::vector<std::string> cells;
};
/// The heads of the columns of TableRow::cells.
const std::vector<std::string>& table_heads();
/// A row for each facility, then the total. Empty for a ledger without rows.
std::vector<TableRow> table_rows(const Ledger& ledger);
/// Sentences for users about the rows that are not known, or known within bounds only.
std::vector<std::string> remarks(const Ledger& ledger);

/// At most 120 columns.
std::string format_text(const Ledger& ledger);
/// Total, facilities and rows; docs/reference/usage_json.md lists the keys.
Json to_json(const Ledger& ledger);
/// to_json() as a document of its own, with its schema.
std::string format_json(const Ledger& ledger, const std::string& run);
/// RFC 4180: a line for each row of the ledger, after a line with the names of the columns.
std::string format_csv(const Ledger& ledger);

}  // namespace xffl::usage
