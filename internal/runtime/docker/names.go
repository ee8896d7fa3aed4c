package docker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Labels on everything that codehub creates in Docker.
const (
	labelInstallation = "codehub.installation"
	labelRole         = "codehub.role"
	labelWorkspace    = "codehub.workspace"
	labelClaim        = "codehub.claim"
	labelImage        = "codehub.image" // of a workspace's container, as given
	labelAgent        = "codehub.agent" // of a workspace's container: digest of the agent's executable; missing: no agent

	labelImageDigest     = "codehub.image-digest"     // of a workspace's container; see runtime.Container
	labelImageNote       = "codehub.image-note"       // of a workspace's container
	labelImageGeneration = "codehub.image-generation" // of a workspace's container
	labelSize            = "codehub.size"             // name of its ContainerSpec.Size
	labelEnvironment     = "codehub.environment"      // its ContainerSpec.EnvDigest

	labelKind   = "codehub.kind"         // of a storage job
	labelVolume = "codehub.volume-claim" // claim of a storage job's home
	labelKey    = "codehub.key"          // archive_key
	labelBucket = "codehub.bucket"       // directory of the bucket's socket that a storage job uses
	labelProof  = "codehub.proof"        // ID of the container that proves a record
	labelAside  = "codehub.aside"        // volume that a container holds or copies to
	labelSince  = "codehub.since"        // when a volume was set aside, RFC 3339
	labelBytes  = "codehub.bytes"        // size of a set-aside volume's content
	labelFiles  = "codehub.entries"      // number of its entries
	labelDigest = "codehub.digest"       // its archive.Digest; of a tool's volume: that of its content

	labelOwner = "codehub.owner"          // username of the workspace's owner, on a home
	labelName  = "codehub.workspace-name" // on a home

	labelMark     = "codehub.mark"     // id of a mark
	labelSerial   = "codehub.serial"   // of a mark
	labelIdentity = "codehub.identity" // of the database that made a mark
	labelAt       = "codehub.at"       // when a mark was made

	// labelAttempt identifies the call that created a volume.
	labelAttempt = "codehub.attempt"
)

// Roles.
const (
	roleWorkspace   = "workspace"      // container
	roleSeed        = "seed"           // container, never started: proves that a home was seeded
	roleHelper      = "helper"         // container or image
	roleHome        = "home"           // volume
	roleJob         = "job"            // container: a storage job
	roleFingerprint = "look"           // container: computes the fingerprint of a home
	roleHolder      = "holder"         // container, never started, that holds a live home's volume; also its image
	roleRestored    = "restored"       // empty volume: records what was restored into a home that is not live yet
	roleSettled     = "settled"        // empty volume: records that a home is live
	roleMount       = "mount"          // volume: a local-dir home during its seeding
	roleRemover     = "remover"        // container that empties a home before Docker removes its volume
	roleRemoving    = "removing"       // empty volume: records that the removal of a home has begun
	roleImplicit    = "made-up"        // volume that Docker created implicitly for a missing home
	roleAside       = "aside"          // set-aside volume; the container that holds it
	roleAsideRecord = "aside-complete" // empty volume: records that a set-aside volume is complete
	roleCopy        = "copy"           // container that copies a volume to set it aside
	roleMark        = "mark"           // empty volume: a mark; see SetMark
	roleScratch     = "scratch"        // anonymous volume: scratch space of an archive job
	roleNetwork     = "network"
	roleAgent       = "agent"         // volume: the executable that is the first process of workspaces
	roleIDE         = "ide"           // volume: the IDE of workspaces whose image does not bring one
	roleDraft       = "network-draft" // network that is only created to get a free subnet from Docker
)

// names are the names of an installation's unique objects. They derive from its ID,
// so that installations share none.
type names struct {
	network string
	bridge  string // an interface: 15 bytes at most
	table   string
	helper  string // repository of the helper's image, and prefix of its containers
	holder  string // image of the containers that hold volumes
	short   string // part of the names of volumes with programs; see toolVolume
}

func namesOf(installation string) names {
	// Hashed, because a UUIDv7 begins with the time: two installations created
	// within a minute would share the prefix.
	sum := sha256.Sum256([]byte(installation))
	short := hex.EncodeToString(sum[:4])
	return names{
		network: "codehub-" + short,
		bridge:  "br-ch" + short,
		table:   "codehub-" + short,
		helper:  "codehub-helper-" + short,
		holder:  "codehub-holder-" + short + ":1",
		short:   short,
	}
}

func seedName(id workspace.ID) string   { return "codehub-seed-" + string(id) }
func holderName(id workspace.ID) string { return "codehub-home-" + string(id) }
func copyName(id workspace.ID) string   { return "codehub-copy-" + string(id) }
func mountName(id workspace.ID) string  { return "ws-" + string(id) + "-mount" }

// settledName is the name of the record that a home is live. It contains the claim,
// because a power cut may bring back an older record without its labels, which must
// not block the name of a newer one.
func settledName(id workspace.ID, claim string) string {
	sum := sha256.Sum256([]byte(claim))
	return earlierSettledName(id) + "-" + hex.EncodeToString(sum[:8])
}

// earlierSettledName is the name of that record in earlier versions.
func earlierSettledName(id workspace.ID) string { return "ws-" + string(id) + "-settled" }

func removerName(id workspace.ID) string { return "codehub-remove-" + string(id) }

// removingName is the name of a removal record. Each remover has its own, so that a
// delayed call can delete its record.
func removingName(id workspace.ID, claim, remover string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + remover))
	return "ws-" + string(id) + "-removing-" + hex.EncodeToString(sum[:8])
}

// fingerprintName is the name of the container that computes a home's fingerprint.
func fingerprintName(id workspace.ID) string { return "codehub-look-" + string(id) }
func (n names) mark(id string) string        { return n.network + "-mark-" + id }

// tool is the name of the volume of a role with programs of this digest.
func (n names) tool(role, digest string) string {
	return "codehub-" + role + "-" + n.short + "-" + digest[:16]
}

func jobName(kind runtime.JobKind, id workspace.ID) string {
	return "codehub-" + string(kind) + "-" + string(id)
}

// restoredName is the name of the record of a restore. It contains everything that
// the record says, so that deleting one never deletes a newer one.
func restoredName(id workspace.ID, claim, key, proof string) string {
	sum := sha256.Sum256([]byte(claim + "\n" + key + "\n" + proof))
	return "ws-" + string(id) + "-restored-" + hex.EncodeToString(sum[:8])
}

// labels returns the labels for an object of this role, and of its workspace if it
// belongs to one.
func (r *Runtime) labels(role string, id workspace.ID, claim string) map[string]string {
	l := map[string]string{}
	maps.Copy(l, r.cfg.ExtraLabels)
	l[labelInstallation] = r.cfg.Installation
	l[labelRole] = role
	if id != "" {
		l[labelWorkspace] = string(id)
		l[labelClaim] = claim
	}
	return l
}

// owns reports whether the labels are of this installation and role.
func (r *Runtime) owns(labels map[string]string, role string) bool {
	return labels[labelInstallation] == r.cfg.Installation && labels[labelRole] == role
}

// filter selects the objects of this installation, and of a role if it is not
// empty.
func (r *Runtime) filter(role string) client.Filters {
	f := client.Filters{}.Add("label", labelInstallation+"="+r.cfg.Installation)
	if role != "" {
		f = f.Add("label", labelRole+"="+role)
	}
	return f
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
