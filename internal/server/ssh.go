package server

import (
	"net"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"codehub/internal/base/setting"
	"codehub/internal/running/attach"
	"codehub/internal/running/service"
	"codehub/internal/server/config"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

// listenSSH opens the listener of SSH; nil: the settings name none.
func listenSSH(cfg config.Config) (net.Listener, error) {
	if cfg.SSH.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", cfg.SSH.Listen)
	if err != nil {
		return nil, &setting.Problem{Setting: "CODEHUB_SSH_LISTEN", Why: err.Error(), Do: "free the port, or give another one"}
	}
	if cfg.Front.ProxyProtocol {
		l = cfg.Front.Proxies.ProxyProtocol(l)
	}
	return l, nil
}

func openGate(p parts, attacher *attach.Attacher) (*sshgate.Gate, error) {
	base := strings.TrimSuffix(p.cfg.PublicURL.String(), "/")
	return sshgate.New(sshgate.Config{
		Settings: p.cfg.SSH, Budget: p.sshBudget, Seed: p.sshSeed, Store: p.db, Attacher: attacher, Log: p.log,
		PageOf: func(id workspace.ID) string { return base + "/workspaces/" + string(id) },
		Exempt: func(a netip.Addr) bool { return a.IsLoopback() || p.cfg.Front.Proxies.Contain(a) },
	})
}

// sshServer is how SSH clients reach this server.
func sshServer(p parts, gate *sshgate.Gate) service.SSHServer {
	s := service.SSHServer{HostKey: gate.HostKey(), Fingerprint: gate.HostFingerprint()}
	if p.ssh != nil {
		s.Host = p.cfg.PublicURL.Hostname()
		if p.cfg.Layout.Local() {
			s.Host = "localhost" // the name below it is known to browsers alone
		}
		if a, ok := p.ssh.Addr().(*net.TCPAddr); ok {
			s.Port = a.Port
		}
	}
	return s
}

// sshMetrics are the numbers of SSH, read when they are collected.
func sshMetrics(gate *sshgate.Gate) []prometheus.Collector {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		gauge("codehub_ssh_connections", "Open SSH connections whose user is known.", gate.Open),
		gauge("codehub_ssh_slots_used", "SSH connections whose user is known, channels and listeners together.",
			func() int { used, _ := gate.Slots(); return used }),
		gauge("codehub_ssh_slots", "The most SSH connections, channels and listeners of all users together.",
			func() int { _, all := gate.Slots(); return all }),
	}
}
