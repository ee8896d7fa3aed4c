package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/server/config"
)

// lookup bounds the wait for a name's addresses at start.
const lookup = 5 * time.Second

// behind returns the addresses of codehub's database, Redis and bucket, which network
// isolation keeps workspaces from. Names are resolved once, at the start; a name that
// cannot be resolved is logged and left out.
func behind(ctx context.Context, cfg config.Config, log *slog.Logger) []netip.Prefix {
	hosts, err := hostsBehind(cfg)
	if err != nil {
		log.Warn("addresses of codehub's own services are not blocked for workspaces", "err", err)
	}
	var out []netip.Prefix
	for _, host := range hosts {
		bounded, cancel := context.WithTimeout(ctx, lookup)
		addrs, err := net.DefaultResolver.LookupNetIP(bounded, "ip", host)
		cancel()
		if err != nil {
			log.Warn("host is not blocked for workspaces because its name does not resolve", "host", host, "err", err)
		}
		for _, a := range addrs {
			// This host's own loopback is out of reach in any case.
			if a = a.Unmap(); !a.IsLoopback() {
				out = append(out, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return out
}

func hostsBehind(cfg config.Config) ([]string, error) {
	var hosts []string
	add := func(h string) {
		if h != "" && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	if cfg.Archives != nil && cfg.Archives.Scheme == "s3" {
		host := "s3.amazonaws.com"
		if e, err := url.Parse(cfg.Archives.Query().Get("endpoint")); err == nil && e.Hostname() != "" {
			host = e.Hostname()
		}
		add(host)
	}
	if r, err := url.Parse(cfg.RedisURL); err == nil && r.Scheme != "unix" {
		add(r.Hostname())
	}
	if cfg.DatabaseURL == "" {
		return hosts, nil // a Unix socket
	}
	pg, err := pgx.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return hosts, fmt.Errorf("read the address of CODEHUB_DATABASE_URL")
	}
	servers := []string{pg.Host}
	for _, f := range pg.Fallbacks {
		servers = append(servers, f.Host)
	}
	for _, h := range servers {
		if len(h) > 0 && h[0] != '/' {
			add(h)
		}
	}
	return hosts, nil
}
