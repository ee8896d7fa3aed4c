package build

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
)

const (
	// maxLine is the longest line of a log, in bytes; the rest of it is dropped.
	maxLine = 4 << 10
	// maxCommand is how many characters of a command an error shows.
	maxCommand = 200
	// maxSentence is the longest error of a build, in bytes.
	maxSentence = 1 << 10
)

// codeKilled is that of a command that was killed, as the kernel does when there is no memory left.
const codeKilled = 137

var ended = regexp.MustCompile(`(?s)^The command '(.*)' returned a non-zero code: \d+$`)

// failed returns the error for a refusal of Docker.
func (b *Builder) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return engine.WrapError(ctx, "build image", err)
	}
	var message *jsonstream.Error
	isMessage := errors.As(err, &message)
	if command := ended.FindStringSubmatch(err.Error()); isMessage && command != nil {
		text := fmt.Sprintf("The command %q ended with code %d", cut(strings.TrimPrefix(command[1], "/bin/sh -c "), maxCommand), message.Code)
		if message.Code == codeKilled {
			text += ": it was killed, probably because it needs more memory than the workspace's size has"
		}
		return &Failed{sentence(text)}
	}
	wrapped := engine.WrapError(ctx, "build image", err)
	switch {
	case errors.Is(wrapped, runtime.ErrUnreachable), errors.Is(wrapped, runtime.ErrBusy), errors.Is(wrapped, runtime.ErrNoSpace),
		!isMessage && !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) && !errdefs.IsInternal(err):
		return wrapped
	}
	return &Failed{sentence(image.WithoutResponse(strings.TrimPrefix(err.Error(), "Error response from daemon: ")))}
}

// sentence returns a message as one sentence.
func sentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxSentence {
		text = strings.ToValidUTF8(text[:maxSentence], "") + "…"
	}
	first, size := utf8.DecodeRuneInString(text)
	return strings.TrimRight(string(unicode.ToUpper(first))+text[size:], ".") + "."
}

func cut(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// lines divides the output of a build into lines.
type lines struct {
	line    func(string)
	partial strings.Builder
}

// escape matches the colors and movements of a terminal.
var escape = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]`)

func (l *lines) write(text string) {
	for {
		part, rest, full := strings.Cut(text, "\n")
		l.partial.WriteString(part[:min(len(part), max(maxLine-l.partial.Len(), 0))])
		if !full {
			return
		}
		l.end()
		text = rest
	}
}

// end ends a line. What Docker says of intermediate containers and images is left out, and so is
// what a program has overwritten.
func (l *lines) end() {
	text := strings.TrimRight(escape.ReplaceAllString(l.partial.String(), ""), "\r ")
	l.partial.Reset()
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text[strings.LastIndexByte(text, '\r')+1:], "\uFFFD"))
	if text == "" || strings.HasPrefix(text, " ---> ") || strings.HasPrefix(text, "Removing intermediate container ") || ownStep.MatchString(text) {
		return
	}
	l.line(text)
}

// ownStep matches the steps that codehub has added.
var ownStep = regexp.MustCompile(`^Step \d+/\d+ : LABEL `)
