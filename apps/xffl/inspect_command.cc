#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "describe.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl {

namespace {

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// A string as it is, anything else as JSON; whatever it is, harmless to a terminal.
std::string shown(const Json& value) {
  return log::printable(value.is_string() ? value.get<std::string>() : dump(value));
}

void print_tensor(const Json& tensor) {
  std::printf("  %-60s %-5s %s\n", shown(tensor["name"]).c_str(), shown(tensor["dtype"]).c_str(),
              shown(tensor["shape"]).c_str());
}

void print_event(const Json& event) {
  std::printf("%5s  %-24s  %5s  %-16s %2s  %-24s %s\n", shown(event["seq"]).c_str(),
              shown(event["time"]).c_str(), shown(event["round"]).c_str(),
              shown(event["facility"]).c_str(), shown(event["attempt"]).c_str(),
              shown(event["kind"]).c_str(), shown(event["payload"]).c_str());
}

void print_text(const Json& json, int indent) {
  for (const auto& [key, value] : json.items()) {
    if (key == "tensors" || key == "events") continue;
    std::printf("%*s%s:", indent, "", log::printable(key, 200).c_str());
    if (value.is_object()) {
      std::printf("\n");
      print_text(value, indent + 2);
    } else {
      std::printf(" %s\n", shown(value).c_str());
    }
  }
}

void inspect(const std::string& path, bool json, bool with_tensors) {
  const Description description = describe(path, with_tensors);
  const Json& content = description.json;
  if (json && content.contains("events")) {
    for (const Json& event : content["events"]) std::printf("%s\n", dump(event).c_str());
  } else if (json) {
    std::printf("%s\n", dump(content, 2).c_str());
  } else {
    print_text(content, 0);
    if (content.contains("tensors"))
      for (const Json& tensor : content["tensors"]) print_tensor(tensor);
    if (content.contains("events"))
      for (const Json& event : content["events"]) print_event(event);
  }
  if (!description.complaint.empty())
    throw Error(ErrorKind::kRejected, log::printable(description.complaint));
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  struct Flags {
    std::string path;
    bool json = false, tensors = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "what a model, token shard, job, report or run is, with its hashes checked");
  command->add_option("path", flags->path, "a file or folder")->required();
  command->add_flag("--json", flags->json, "for programs; a journal's events one per line");
  command->add_flag("--tensors", flags->tensors, "list every tensor's dtype and shape");
  command->callback([flags] { inspect(flags->path, flags->json, flags->tensors); });
}

}  // namespace xffl
