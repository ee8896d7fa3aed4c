package terminal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Interactive reports whether a person answers: standard input is a terminal.
func Interactive() bool { return term.IsTerminal(int(os.Stdin.Fd())) }

// Ask reads a line.
func Ask(out io.Writer, in *bufio.Reader, question string) (string, error) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprint(out, question)
	}
	line, err := in.ReadString('\n')
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		if err == nil || err == io.EOF {
			err = errors.New("nothing was entered")
		}
		return "", err
	}
	return line, nil
}

// AskSecret reads a line that the terminal does not show.
func AskSecret(out io.Writer, in *bufio.Reader, question string) (string, error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return Ask(out, in, "")
	}
	fmt.Fprint(out, question)
	b, err := term.ReadPassword(fd)
	fmt.Fprintln(out)
	if err == nil && len(b) == 0 {
		err = errors.New("nothing was entered")
	}
	return string(b), err
}

// AskNewPassword asks for a password, twice on a terminal.
func AskNewPassword(out io.Writer, in *bufio.Reader) (string, error) {
	password, err := AskSecret(out, in, "New password: ")
	if err != nil || !term.IsTerminal(int(os.Stdin.Fd())) {
		return password, err
	}
	again, err := AskSecret(out, in, "New password again: ")
	if err == nil && again != password {
		err = errors.New("the passwords differ")
	}
	return password, err
}
