package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"codehub/internal/runtime/registry"
	"codehub/internal/workspace/imageref"
)

// registries asks registries with the server's logins. One that does not respond is not
// asked again for a while, so that it does not delay every start.
type registries struct {
	client registry.Client
	logins func(context.Context) map[string]registry.Login
	// answered learns of each call to a registry; nil: nothing does.
	answered func(host string, err error)

	mu    sync.Mutex
	quiet map[string]time.Time // until when a registry is not asked
}

const (
	askWithin = 5 * time.Second
	quietFor  = 30 * time.Second
)

// resolve returns the digest that a reference names.
func (g *registries) resolve(ctx context.Context, ref string) (digest string, err error) {
	err = g.ask(ctx, ref, func(ctx context.Context, login registry.Login) error {
		digest, err = g.client.Resolve(ctx, ref, login)
		return err
	})
	return digest, err
}

// read returns what an image says of itself.
func (g *registries) read(ctx context.Context, ref string) (img registry.Image, err error) {
	err = g.ask(ctx, ref, func(ctx context.Context, login registry.Login) error {
		img, err = g.client.Read(ctx, ref, login)
		return err
	})
	return img, err
}

func (g *registries) ask(ctx context.Context, ref string, call func(context.Context, registry.Login) error) error {
	host := imageref.Registry(ref)
	g.mu.Lock()
	until := g.quiet[host]
	g.mu.Unlock()
	if time.Now().Before(until) {
		return &registry.Refusal{Registry: host, Kind: registry.Unreachable}
	}
	within, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := call(within, g.logins(within)[host])
	if g.answered != nil && ctx.Err() == nil {
		g.answered(host, err)
	}
	if registry.KindOf(err) == registry.Unreachable && ctx.Err() == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.quiet == nil {
			g.quiet = map[string]time.Time{}
		}
		g.quiet[host] = time.Now().Add(quietFor)
	}
	return err
}

// answered notes whether the registry of codehub's own images, which the default image usually
// shares, has a private address that is not permitted. Of other registries it says nothing: any
// user can name one.
func (r *Runtime) answered(host string, err error) {
	if host != imageref.Registry(r.cfg.ServerImage) && host != imageref.Registry(r.cfg.IDEImage) {
		return
	}
	if registry.KindOf(err) != registry.Private {
		err = nil
	}
	r.privateRegistry.Set(err)
}

// logins returns the logins of this server: those of the file, and for other registries those
// of the Secrets by which nodes pull. Both are read again each time, so that they can be
// replaced. What cannot be used is left out, and the condition registry-login says so.
func (r *Runtime) logins(ctx context.Context) map[string]registry.Login {
	out := map[string]registry.Login{}
	var errs []error
	for _, name := range r.cfg.SecretNames {
		data, err := r.secretData(ctx, name)
		var found map[string]registry.Login
		if err == nil {
			if found, err = registry.ParseLogins(data); err != nil {
				err = fmt.Errorf("the Secret %s: %w", name, err)
			}
		}
		maps.Copy(out, found)
		errs = append(errs, err)
	}
	if file := r.cfg.RegistryAuthFile; file != "" {
		found, err := registry.ReadLogins(file)
		if err == nil {
			err = registry.Exposed(file)
		}
		maps.Copy(out, found)
		errs = append(errs, err)
	}
	r.noLogin.Set(errors.Join(errs...))
	return out
}
