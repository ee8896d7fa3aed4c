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

// Names returns the environment variables that are settings of the server or
// the client.
func Names() map[string]bool {
	known := map[string]bool{"CODEHUB_SESSION_TOKEN": true}
	for f := range Fields() {
		for name := range strings.SplitSeq(f.Tag.Get("env"), ",") {
			known[name] = true
		}
	}
	return known
}
