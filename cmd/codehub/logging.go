package main

import (
	"log"
	"log/slog"
	"os"
	"reflect"
	"strings"

	"codehub/internal/config"
)

func newLogger(cfg config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // checked by Resolve
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

// httpErrors is where net/http reports what goes wrong on connections, such
// as clients that hang up; nothing in it needs anybody's attention.
func httpErrors(l *slog.Logger) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelDebug)
}

// settings is the names of all environment variables that are settings, of
// the server and of the client.
func settings() map[string]bool {
	known := map[string]bool{"CODEHUB_SESSION_TOKEN": true}
	t := reflect.TypeFor[config.Config]()
	for i := range t.NumField() {
		for name := range strings.SplitSeq(t.Field(i).Tag.Get("env"), ",") {
			known[name] = true
		}
	}
	return known
}
