package embedded

import (
	"io"
	"io/fs"
	"slices"
	"strings"
)

// keepLogs files of 5 MB at most (log_rotation_size).
const keepLogs = 10

// logFiles lists PostgreSQL's own log files, the oldest first.
func (l *layout) logFiles() []string {
	entries, err := fs.ReadDir(l.root.FS(), logName)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "postgresql-") && strings.HasSuffix(e.Name(), ".log") {
			names = append(names, logName+"/"+e.Name())
		}
	}
	slices.Sort(names) // the names are times
	return names
}

// pruneLogs limits the number of log files: PostgreSQL limits only their size.
func (l *layout) pruneLogs() error {
	names := l.logFiles()
	for len(names) > keepLogs {
		if err := l.root.Remove(names[0]); err != nil {
			return err
		}
		names = names[1:]
	}
	return nil
}

// logTail returns the last lines of postgres's standard error, and of its log if this start
// has created one, to append to an error.
func (l *layout) logTail() string {
	log := l.tail(startupLog)
	begun, err := l.root.Lstat(startupLog)
	for _, name := range l.logFiles() {
		if fi, lErr := l.root.Lstat(name); err == nil && lErr == nil && !fi.ModTime().Before(begun.ModTime()) {
			log += l.tail(name)
		}
	}
	return errorLines(log)
}

func (l *layout) tail(name string) string {
	const size = 8 << 10
	fi, err := l.root.Lstat(name)
	if err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	f, err := l.root.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, size))
	return string(b)
}

// errorLines returns the lines of a program's output that describe an error.
func errorLines(output string) string {
	var lines, plain []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		plain = append(plain, line)
		for _, mark := range []string{"FATAL:", "PANIC:", "ERROR:", "HINT:", "DETAIL:", "error:", "hint:", "could not", "invalid"} {
			if strings.Contains(line, mark) {
				lines = append(lines, line)
				break
			}
		}
	}
	if len(lines) == 0 {
		lines = plain
	}
	if len(lines) == 0 {
		return ""
	}
	return ": " + strings.Join(lines[max(0, len(lines)-5):], "; ")
}
