// Package setting describes invalid settings. The package that uses a group of
// settings declares and checks it; package config holds all groups.
package setting

import "fmt"

// Problem is an invalid setting.
type Problem struct {
	Setting string // as in the environment
	Why     string
	Do      string // a value that works
}

func (p *Problem) Error() string { return fmt.Sprintf("%s: %s; %s", p.Setting, p.Why, p.Do) }

// CodehubExitCode is the exit code of wrong usage.
func (p *Problem) CodehubExitCode() int { return 2 }

// Invalid returns a *Problem.
func Invalid(name, why, do string) error { return &Problem{Setting: name, Why: why, Do: do} }
