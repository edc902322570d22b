# The wide-area network between this machine and a facility; sourced by scripts/dev_cluster.sh.
#
# Without the emulator the link is a veth pair. With it, wan_emulator.cc forwards every packet, on the same addresses, so
# that connections survive the change. Needs: state, parts, and an entered facility (init, name, net, mover).

emulator() { # prints the path of the emulator
  if [ -n "${XFFL_WAN_EMULATOR:-}" ]; then echo "$XFFL_WAN_EMULATOR"; return; fi
  if [ ! -x "$state/wan-emulator" ]; then
    "${CXX:-g++}" -O2 -std=c++20 -pthread -o "$state/wan-emulator.part" "$parts/wan_emulator.cc"
    mv "$state/wan-emulator.part" "$state/wan-emulator"
  fi
  echo "$state/wan-emulator"
}
addresses() { # addresses DEVICE-HERE DEVICE-THERE add|del: the same addresses on either kind of link
  local pair=198.18.$net mask=/24 peer= there=
  case "$1" in xw*) mask= peer="peer $pair.1" there="peer $pair.254" ;; esac
  ip addr "$3" "$pair.254$mask" $peer dev "$1"
  inside ip addr "$3" "$pair.1$mask" $there dev "$2"
  [ -z "$mover" ] || inside ip addr "$3" "$pair.2/32" dev "$2"
  if [ -n "$mover" ] && [ -n "$peer" ] && [ "$3" = add ]; then ip route replace "$pair.2/32" dev "$1"; fi
}
start_emulator() {
  local dir=$state/$name program
  program=$(emulator)
  [ -c /dev/net/tun ] || skip "the WAN emulator needs /dev/net/tun, which is missing"
  addresses "xb$net" wan0 del
  setsid "$program" "$init" "xw$net" wan1 "$dir/wan" </dev/null >"$dir/log/wan.log" 2>&1 &
  remember $! "$dir/wan.pid"
  until_true 10 grep -q ready "$dir/log/wan.log" || fail "the WAN emulator: $(cat "$dir/log/wan.log")"
  ip link set "xw$net" mtu 1500 txqueuelen 10000 up
  inside ip link set wan1 mtu 1500 txqueuelen 10000 up
  addresses "xw$net" wan1 add
}
wan() {
  local dir=$state/$name pid delay=0 rate=0 loss=0 queue=4096 cut=0
  if [ "$1" = off ]; then
    pid=$(recall "$dir/wan.pid") || return 0
    kill "$pid"
    until_true 5 test ! -e "/sys/class/net/xw$net" || fail "the WAN emulator does not end"
    rm -f "$dir/wan.pid" "$dir/wan"
    addresses "xb$net" wan0 add
    return
  fi
  [ ! -s "$dir/wan" ] || read -r delay rate loss queue cut <"$dir/wan"
  case "$1" in
    cut) cut=1 ;;
    heal) cut=0 ;;
    *) [ $# -ge 3 ] || usage "wan NAME DELAY_MS RATE_MBIT LOSS_PCT [QUEUE_KB]"
      delay=$1 rate=$2 loss=$3 queue=${4:-4096} cut=0 ;;
  esac
  echo "$delay $rate $loss $queue $cut" >"$dir/wan.part"
  mv "$dir/wan.part" "$dir/wan"
  if recall "$dir/wan.pid" >/dev/null; then sleep 0.05; else start_emulator; fi
}
