package devcontainers

import "time"

// Settings are the settings of builds, as codehub serve declares them. Without Builds there are none.
type Settings struct {
	Builds  int           `name:"devcontainer-builds" env:"CODEHUB_DEVCONTAINER_BUILDS" min:"0" max:"64" default:"0" help:"How many images are built at once from the Dockerfiles and Features of repositories' devcontainer.json; 0 builds none."`
	Timeout time.Duration `name:"devcontainer-build-timeout" env:"CODEHUB_DEVCONTAINER_BUILD_TIMEOUT" min:"1m" max:"24h" default:"30m" help:"How long such a build may take."`
}
