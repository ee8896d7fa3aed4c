package docker

import "context"

// Prepare implements runtime.Runtime.
func (r *Runtime) Prepare(ctx context.Context) error {
	r.kernel.check(r.cfg.MaxRunning, r.cfg.UIDs.Len(), !r.cfg.KeepLimits)
	_, err := r.network.Checked(ctx, 0)
	if err == nil {
		r.homes.CheckUIDs(ctx)
		r.images.CheckDefault(ctx)
		r.images.CheckLogins()
		r.tools.Prepare(ctx)
		r.sweepNow(ctx)
	}
	return err
}
