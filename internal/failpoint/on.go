//go:build failpoint

// Package failpoint stops a server at a chosen step of an operation, for tests. It
// does so only in a binary built with -tags failpoint.
package failpoint

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

// Step returns the function that a server calls at each step of an operation. It
// performs the actions of CODEHUB_FAILPOINT, as
//
//	step[@workspace][:n]=action
//
// separated by commas or lines, or the name of a file with such lines, which is
// read at every step. The action is performed at the nth pass of that step since it
// was requested, by default the first:
//
//	kill       the server ends as by kill -9
//	pause      the server stops until it receives SIGCONT
//	hold       this operation waits while the action is requested
//	killjob    the workspace's storage job is killed
//	removejob  the workspace's storage job is removed by force
//
// CODEHUB_FAILPOINT_LOG names a file to which every passed step is appended, as
// "step workspace".
func Step() func(id workspace.ID, step string) {
	f := &failpoints{spec: os.Getenv("CODEHUB_FAILPOINT"), log: os.Getenv("CODEHUB_FAILPOINT_LOG"), passes: map[string]int{}}
	return f.step
}

type failpoints struct {
	spec, log string

	mu     sync.Mutex
	passes map[string]int // by request
}

func (f *failpoints) step(id workspace.ID, step string) {
	f.record(step + " " + string(id) + "\n")
	ask, action := f.due(id, step)
	switch action {
	case "":
	case "kill":
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		select {}
	case "pause":
		must(pause())
	case "hold":
		f.record("held " + ask + "\n")
		for f.asked(ask) {
			time.Sleep(5 * time.Millisecond)
		}
	case "killjob", "removejob":
		must(endJob(id, action == "removejob"))
	default:
		panic("failpoint: no such action: " + action)
	}
}

// due returns the action to perform now, if any, and its request.
func (f *failpoints) due(id workspace.ID, step string) (ask, action string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asks := f.asks()
	for ask := range f.passes {
		if _, ok := asks[ask]; !ok {
			delete(f.passes, ask) // a later request counts again from 0
		}
	}
	for ask, action := range asks {
		where, nth, counted := strings.Cut(ask, ":")
		if name, of, bound := strings.Cut(where, "@"); name != step || bound && of != string(id) {
			continue
		}
		n := 1
		if counted {
			var err error
			n, err = strconv.Atoi(nth)
			must(err)
		}
		if f.passes[ask]++; f.passes[ask] == n {
			return ask, action
		}
	}
	return "", ""
}

func (f *failpoints) asked(ask string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.asks()[ask]
	return ok
}

// asks returns the current requests with their actions.
func (f *failpoints) asks() map[string]string {
	spec := f.spec
	if strings.HasPrefix(spec, "/") {
		b, err := os.ReadFile(spec)
		if err != nil && !os.IsNotExist(err) {
			panic(err)
		}
		spec = string(b)
	}
	out := map[string]string{}
	for line := range strings.FieldsFuncSeq(spec, func(r rune) bool { return r == ',' || r == '\n' }) {
		ask, action, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			panic(fmt.Sprintf("failpoint: %q names no action", line))
		}
		out[ask] = action
	}
	return out
}

func (f *failpoints) record(line string) {
	if f.log == "" {
		return
	}
	log, err := os.OpenFile(f.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(err)
	_, err = log.WriteString(line)
	must(err)
	must(log.Close())
}

// endJob kills or removes the storage job of a workspace. Without a job it does
// nothing: the job may have ended, or not begun.
func endJob(id workspace.ID, remove bool) error {
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer docker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mine := client.Filters{}.Add("label", "codehub.role=job").Add("label", "codehub.workspace="+string(id))
	jobs, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		return err
	}
	for _, j := range jobs.Items {
		if remove {
			_, err = docker.ContainerRemove(ctx, j.ID, client.ContainerRemoveOptions{Force: true})
		} else {
			_, err = docker.ContainerKill(ctx, j.ID, client.ContainerKillOptions{Signal: "SIGKILL"})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "failpoint: the job had ended:", err)
		}
	}
	return nil
}

func must(err error) {
	if err != nil {
		panic(fmt.Errorf("failpoint: %w", err))
	}
}
