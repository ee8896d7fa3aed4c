package reconcile

import (
	"context"
	"path"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/lifecycle"
)

// FolderEnv is the variable with the folder that the IDE opens, if that is not ~/project.
const FolderEnv = "CODEHUB_FOLDER"

// addEnvironment adds the hostname and the environment variables of row's container:
// those of the server's file, replaced by those of the workspace, and codehub's own.
func (t *term) addEnvironment(ctx context.Context, row workspace.Workspace, spec *runtime.ContainerSpec) (l postgres.Launch, err error) {
	err = t.inSession(ctx, func(ctx context.Context) (err error) {
		l, err = t.rows.Launch(ctx, row.ID)
		return err
	})
	if err != nil {
		return l, err
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
	if !l.Project.Empty() {
		spec.Env[FolderEnv] = path.Join(runtime.HomeDir, l.Project.Folder())
	}
	spec.TimeZone, spec.EnvDigest = l.TimeZone, lifecycle.LaunchDigest(l.Env, l.SecretsDigest)
	return l, nil
}
