package service

import (
	"time"

	"codehub/api"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Project is the project that a request creates a workspace with; nil: none.
func Project(list []api.Repository) *workspace.Project {
	if len(list) == 0 {
		return nil
	}
	p := &workspace.Project{}
	for _, r := range list {
		p.Repositories = append(p.Repositories, workspace.Repository(r))
	}
	return p
}

func repositoriesOf(p *workspace.Project) []api.Repository {
	out := []api.Repository{}
	if p == nil {
		return out
	}
	for _, r := range p.Repositories {
		out = append(out, api.Repository(r))
	}
	return out
}

// Scripts are scripts as the API shows them.
func Scripts(s *workspace.Scripts) *api.Scripts {
	if s == nil {
		return nil
	}
	return &api.Scripts{Create: s.Create, Start: s.Start, TimeoutSeconds: s.Timeout}
}

// Ports are the ports of a project as the API shows them.
func Ports(p *workspace.Project) []api.ProjectPort {
	out := []api.ProjectPort{}
	for _, port := range p.AllPorts() {
		out = append(out, api.ProjectPort(port))
	}
	return out
}

func extensionsOf(p *workspace.Project) []string {
	if list := p.AllExtensions(); list != nil {
		return list
	}
	return []string{}
}

func secretsOf(p *workspace.Project) []string {
	if list := p.AllSecrets(); list != nil {
		return list
	}
	return []string{}
}

func scriptsOf(p *workspace.Project) *api.Scripts {
	if p == nil {
		return nil
	}
	return Scripts(p.Scripts)
}

// Setup is a workspace's setup as the API shows it.
func Setup(s agent.SetupStatus) api.Setup {
	out := api.Setup{Steps: []api.SetupStep{}}
	for _, st := range s.Steps {
		out.Steps = append(out.Steps, api.SetupStep{
			Name: st.Name, Kind: st.Kind, State: string(st.State), Percent: st.Percent, Detail: st.Detail, Reason: st.Reason, Error: st.Error, Log: st.Log,
			StartedAt: second(st.Started), EndedAt: second(st.Ended), Folder: st.Folder, Described: st.Described,
		})
	}
	return out
}

func second(since1970 int64) *time.Time {
	if since1970 == 0 {
		return nil
	}
	t := time.Unix(since1970, 0).UTC()
	return &t
}
