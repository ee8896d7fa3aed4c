package engine

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strings"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Labels on everything that codehub creates in Docker.
const (
	LabelInstallation = "codehub.installation"
	LabelRole         = "codehub.role"
	LabelWorkspace    = "codehub.workspace"
	LabelClaim        = "codehub.claim"
	LabelImage        = "codehub.image" // of a workspace's container, as given
	LabelAgent        = "codehub.agent" // of a workspace's container: digest of the agent's executable; missing: no agent

	LabelImageDigest     = "codehub.image-digest"     // of a workspace's container; see runtime.Container
	LabelImageNote       = "codehub.image-note"       // of a workspace's container
	LabelImageGeneration = "codehub.image-generation" // of a workspace's container
	LabelSize            = "codehub.size"             // name of its ContainerSpec.Size
	LabelEnvironment     = "codehub.environment"      // its ContainerSpec.EnvDigest

	LabelKind   = "codehub.kind"         // of a storage job
	LabelVolume = "codehub.volume-claim" // claim of a storage job's home
	LabelKey    = "codehub.key"          // archive_key
	LabelBucket = "codehub.bucket"       // directory of the bucket's socket that a storage job uses
	LabelProof  = "codehub.proof"        // ID of the container that proves a record
	LabelAside  = "codehub.aside"        // volume that a container holds or copies to
	LabelSince  = "codehub.since"        // when a volume was set aside, RFC 3339
	LabelBytes  = "codehub.bytes"        // size of a set-aside volume's content
	LabelFiles  = "codehub.entries"      // number of its entries
	LabelDigest = "codehub.digest"       // its archive.Digest; of a tool's volume: that of its content

	LabelOwner = "codehub.owner"          // username of the workspace's owner, on a home
	LabelName  = "codehub.workspace-name" // on a home

	LabelMark     = "codehub.mark"     // id of a mark
	LabelSerial   = "codehub.serial"   // of a mark
	LabelIdentity = "codehub.identity" // of the database that made a mark
	LabelAt       = "codehub.at"       // when a mark was made

	// LabelAttempt identifies the call that created a volume.
	LabelAttempt = "codehub.attempt"
)

// Roles.
const (
	RoleWorkspace   = "workspace"      // container
	RoleSeed        = "seed"           // container, never started: proves that a home was seeded
	RoleHelper      = "helper"         // container or image
	RoleHome        = "home"           // volume
	RoleJob         = "job"            // container: a storage job
	RoleFingerprint = "look"           // container: computes the fingerprint of a home
	RoleHolder      = "holder"         // container, never started, that holds a live home's volume; also its image
	RoleRestored    = "restored"       // empty volume: records what was restored into a home that is not live yet
	RoleSettled     = "settled"        // empty volume: records that a home is live
	RoleMount       = "mount"          // volume: a local-dir home during its seeding
	RoleRemover     = "remover"        // container that empties a home before Docker removes its volume
	RoleRemoving    = "removing"       // empty volume: records that the removal of a home has begun
	RoleImplicit    = "made-up"        // volume that Docker created implicitly for a missing home
	RoleAside       = "aside"          // set-aside volume; the container that holds it
	RoleAsideRecord = "aside-complete" // empty volume: records that a set-aside volume is complete
	RoleCopy        = "copy"           // container that copies a volume to set it aside
	RoleMark        = "mark"           // empty volume: a mark; see SetMark
	RoleScratch     = "scratch"        // anonymous volume: scratch space of a job, or the folder of a drill
	RoleNetwork     = "network"
	RoleAgent       = "agent"         // volume: the executable that is the first process of workspaces
	RoleIDE         = "ide"           // volume: the IDE of workspaces whose image does not bring one
	RoleBuilt       = "built"         // image that was built for a workspace; the containers of its build
	RoleDraft       = "network-draft" // network that is only created to get a free subnet from Docker
)

// Names are the names of an installation's unique objects. They derive from its ID,
// so that installations share none.
type Names struct {
	Network     string
	Bridge      string // an interface: 15 bytes at most
	BuildBridge string // that of the network of builds
	Table       string
	Helper      string // repository of the helper's image, and prefix of its containers
	Holder      string // image of the containers that hold volumes
	short       string // part of the names of volumes with programs; see package tools
}

func namesOf(installation string) Names {
	// Hashed, because a UUIDv7 begins with the time: two installations created
	// within a minute would share the prefix.
	sum := sha256.Sum256([]byte(installation))
	short := hex.EncodeToString(sum[:4])
	return Names{
		Network:     "codehub-" + short,
		Bridge:      "br-ch" + short,
		BuildBridge: "br-cb" + short,
		Table:       "codehub-" + short,
		Helper:      "codehub-helper-" + short,
		Holder:      "codehub-holder-" + short + ":1",
		short:       short,
	}
}

// The names of containers and volumes of one workspace.

func SeedName(id workspace.ID) string   { return "codehub-seed-" + string(id) }
func HolderName(id workspace.ID) string { return "codehub-home-" + string(id) }
func CopyName(id workspace.ID) string   { return "codehub-copy-" + string(id) }
func MountName(id workspace.ID) string  { return "ws-" + string(id) + "-mount" }

// SettledName is the name of the record that a home is live. It contains the claim,
// because a power cut may bring back an older record without its labels, which must
// not block the name of a newer one.
func SettledName(id workspace.ID, claim string) string {
	sum := sha256.Sum256([]byte(claim))
	return EarlierSettledName(id) + "-" + hex.EncodeToString(sum[:8])
}

// EarlierSettledName is the name of that record in earlier versions.
func EarlierSettledName(id workspace.ID) string { return "ws-" + string(id) + "-settled" }

// RemoverName is the name of the container that empties a home.
func RemoverName(id workspace.ID) string { return "codehub-remove-" + string(id) }

// AsideHolderName is the name of the container that holds a set-aside volume.
func AsideHolderName(target string) string {
	return "codehub-aside-" + strings.TrimPrefix(target, "ws-")
}

// AsideRecordName is the name of the volume that records that target is complete.
func AsideRecordName(target string) string { return target + "-complete" }

// RemovingName is the name of a removal record. Each remover has its own, so that a
// delayed call can delete its record.
func RemovingName(id workspace.ID, claim, remover string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + remover))
	return "ws-" + string(id) + "-removing-" + hex.EncodeToString(sum[:8])
}

// FingerprintName is the name of the container that computes a home's fingerprint.
func FingerprintName(id workspace.ID) string { return "codehub-look-" + string(id) }

// Mark is the name of the volume of a mark.
func (n Names) Mark(id string) string { return n.Network + "-mark-" + id }

// Tool is the name of the volume of a role with programs of this digest.
func (n Names) Tool(role, digest string) string {
	return "codehub-" + role + "-" + n.short + "-" + digest[:16]
}

// JobName is the name of the container of a storage job.
func JobName(kind runtime.JobKind, id workspace.ID) string {
	return "codehub-" + string(kind) + "-" + string(id)
}

// RestoredName is the name of the record of a restore. It contains everything that
// the record says, so that deleting one never deletes a newer one.
func RestoredName(id workspace.ID, claim, key, proof string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + key + "\n" + proof))
	return "ws-" + string(id) + "-restored-" + hex.EncodeToString(sum[:8])
}

// Labels returns the labels for an object of this role, and of its workspace if it
// belongs to one.
func (e *Engine) Labels(role string, id workspace.ID, claim string) map[string]string {
	l := map[string]string{}
	maps.Copy(l, e.ExtraLabels)
	l[LabelInstallation] = e.Installation
	l[LabelRole] = role
	if id != "" {
		l[LabelWorkspace] = string(id)
		l[LabelClaim] = claim
	}
	return l
}

// Owns reports whether the labels are of this installation and role.
func (e *Engine) Owns(labels map[string]string, role string) bool {
	return labels[LabelInstallation] == e.Installation && labels[LabelRole] == role
}

// Filter selects the objects of this installation, and of a role if it is not
// empty.
func (e *Engine) Filter(role string) client.Filters {
	f := client.Filters{}.Add("label", LabelInstallation+"="+e.Installation)
	if role != "" {
		f = f.Add("label", LabelRole+"="+role)
	}
	return f
}

// RandomHex returns random bytes as text.
func RandomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
