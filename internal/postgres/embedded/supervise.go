package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Run supervises postgres until ctx ends or Stop is called, and then returns nil. It
// restarts a postgres that has exited, with growing delays and without a limit: for the
// rest of the server the database is unavailable meanwhile. It never creates a
// cluster. Postgres keeps running when Run returns; only Stop ends it.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.lifetime, cancel)()
	const first, most, calm = 100 * time.Millisecond, 30 * time.Second, time.Minute
	backoff := first
	for {
		since := time.Now()
		if s.attend(ctx) != nil {
			return nil
		}
		s.log.Error("postgres exited unexpectedly; restarting", "err", "postgres ended"+s.lay.logTail())
		if time.Since(since) > calm {
			backoff = first
		}
		for up := false; !up; backoff = min(2*backoff, most) {
			if pause(ctx, backoff) != nil {
				return nil
			}
			err := s.up(ctx)
			if ctx.Err() != nil {
				return nil
			}
			s.down.Set(err)
			up = err == nil
		}
	}
}

// attend returns nil when postgres has ended, or the context's error. Meanwhile it
// calls upkeep periodically.
func (s *Server) attend(ctx context.Context) error {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	for {
		round, cancel := context.WithTimeout(ctx, upkeepEvery)
		err := p.wait(round)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.upkeep(); err != nil {
			s.log.Warn("upkeep of the database's folder failed", "err", err)
		}
	}
}

// upkeep limits the logs, and recreates the short name of the socket if a cleaner of
// temporary files has removed it.
func (s *Server) upkeep() error {
	_, err := s.lay.socketFolder()
	return errors.Join(err, s.lay.pruneLogs())
}

// Stop shuts postgres down, and releases the lock on the data folder if Start took it.
// Open transactions are rolled back. If postgres still runs when ctx ends (after 30 s
// without a deadline), Stop ends it at once and returns an error: no committed data is
// lost, but the next start recovers. That takes 10 s more at most. Further calls do
// nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.end() // before the mutex: it ends a restart that holds it
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := s.halt(ctx)
	s.proc = nil
	if s.socket != s.lay.path(runName) {
		err = errors.Join(err, os.Remove(s.socket))
	}
	err = errors.Join(err, s.lay.root.Close())
	if s.lock != nil {
		err = errors.Join(err, s.lock.Release())
	}
	return err
}

// halt ends the current postmaster: cleanly, then at once, then by force.
func (s *Server) halt(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, stopWait)
		defer cancel()
	}
	err := s.proc.signal(syscall.SIGINT) // "fast": no waiting for clients
	if err == nil {
		if err = s.proc.wait(ctx); err == nil {
			s.log.Info("postgres stopped", "pid", s.proc.pid)
			return nil
		}
	}
	late := fmt.Errorf("postgres did not stop in time and was stopped at once; it recovers when it is next started: %w", err)
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		harder, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
		err := errors.Join(s.proc.signal(sig), s.proc.wait(harder))
		cancel()
		if err == nil {
			return late
		}
	}
	return fmt.Errorf("postgres (pid %d) cannot be stopped: %w", s.proc.pid, err)
}
