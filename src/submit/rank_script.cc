#include "rank_script.h"

#include "xffl/submit/queue_manager.h"

namespace xffl::submit {

ScriptValues rank_script_values(const ScriptRequest& request, std::vector<std::string> options,
                                std::chrono::seconds time, std::chrono::seconds warning) {
  const JobShape shape = request.settings.manager().shape(request.settings, request.world_size);
  std::vector<std::string> launch = request.image;
  launch.insert(launch.end(), request.trainer.begin(), request.trainer.end());
  const auto warn_after = warning.count() > 0 ? (time - warning).count() : 0;
  return {.values = {{"options", std::move(options)},
                     {"modules", request.modules},
                     {"launch", std::move(launch)},
                     {"nodes", std::to_string(shape.nodes)},
                     {"tasks_per_node", std::to_string(shape.tasks_per_node)},
                     {"warn_after", std::to_string(warn_after)}},
          .optional = {"modules", "nodes", "tasks_per_node", "warn_after"}};
}

}  // namespace xffl::submit
