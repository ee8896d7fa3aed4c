package reconcile

import (
	"context"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
)

// addEnvironment adds the hostname and the environment variables of row's container:
// those of the server's file, replaced by those of the workspace, and codehub's own.
func (t *term) addEnvironment(ctx context.Context, row workspace.Workspace, spec *runtime.ContainerSpec) error {
	var l postgres.Launch
	err := t.inSession(ctx, func(ctx context.Context) (err error) {
		l, err = t.rows.Launch(ctx, row.ID)
		return err
	})
	if err != nil {
		return err
	}
	server, err := t.env.Env()
	if err != nil {
		t.cfg.Log.Warn("environment file not read; its last valid content is used", "file", t.env.Path, "err", err)
	}
	spec.Hostname = environ.Hostname(row.Name)
	spec.Env = environ.Join(server, l.Env, map[string]string{
		"CODEHUB_WORKSPACE_NAME": row.Name, "CODEHUB_WORKSPACE_ID": string(row.ID),
		"CODEHUB_WORKSPACE_OWNER": l.Owner, "CODEHUB_WORKSPACE_URL": t.cfg.Address(row.ID),
	})
	spec.TimeZone, spec.EnvDigest = l.TimeZone, environ.Digest(l.Env)
	return nil
}
