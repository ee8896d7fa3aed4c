package config

import (
	"io"
	"log/slog"
	"strings"
)

// Logger returns the logger of LogFormat and LogLevel, which writes to w.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked by Resolve
	opts := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// ofOthers are variables of the client, of commands that run with the settings of the server,
// and of workspaces, in which a server may run as well.
var ofOthers = []string{
	"CODEHUB_SESSION_TOKEN", "CODEHUB_IMPORT_FROM", "CODEHUB_IMPORT_TOKEN",
	"CODEHUB_WORKSPACE_ID", "CODEHUB_WORKSPACE_NAME", "CODEHUB_WORKSPACE_OWNER", "CODEHUB_BUSY_SOCKET",
}

// ofTests are the prefixes of variables of codehub's own tests and benchmarks.
var ofTests = []string{"CODEHUB_TEST_", "CODEHUB_BENCH_", "CODEHUB_SOAK_", "CODEHUB_SCREENSHOTS"}

// names returns the environment variables that codehub serve accepts.
func names() map[string]bool {
	known := map[string]bool{}
	for _, name := range ofOthers {
		known[name] = true
	}
	for f := range Fields() {
		for name := range strings.SplitSeq(f.Tag.Get("env"), ",") {
			known[name] = true
		}
	}
	for _, name := range secrets() {
		known[name+fileSuffix] = true
	}
	return known
}
