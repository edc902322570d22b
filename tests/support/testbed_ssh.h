// The coordinator's SSH settings for a facility of the testbed.
#pragma once

#include "support/testbed.h"
#include "xffl/remote/ssh.h"

namespace xffl::test {

inline remote::SshSettings ssh_settings(const Facility& facility) {
  remote::SshSettings ssh;
  ssh.facility = facility.name;
  ssh.hosts = {{facility.host, facility.port}};
  ssh.user = facility.user;
  ssh.keys = {facility.key};
  ssh.agent = false;
  ssh.known_hosts = facility.known_hosts;
  return ssh;
}

}  // namespace xffl::test
