#!/usr/bin/env bash
# Sourced by scripts/release-images.sh: writes images as OCI archives. The same layers and the same
# configuration make the same bytes.

# shellcheck disable=SC2154 # oci_layers
# archived OUT NAME CONFIG LAYER… writes an OCI archive of an image: CONFIG is its configuration
# (JSON), each LAYER a tar archive. It prints the digest of the manifest. Layers that were compressed
# before are taken from $oci_layers, a folder.
archived() {
	local out=$1 name=$2 config=$3 folder layer diff file descriptors=() manifest digest
	shift 3
	folder=$(mktemp -d "$oci_layers/image.XXXXXX")
	mkdir -p "$folder/blobs/sha256"
	for layer; do
		diff=$(sha256sum <"$layer" | cut -d' ' -f1)
		file=$oci_layers/$diff.gz
		if [ ! -e "$file" ]; then
			gzip --no-name -6 <"$layer" >"$file.new" && mv "$file.new" "$file" || return
		fi
		ln -f "$file" "$folder/blobs/sha256/$(sha256sum <"$file" | cut -d' ' -f1)"
		descriptors+=("$(descriptor application/vnd.oci.image.layer.v1.tar+gzip "$file")")
	done
	cp "$config" "$folder/blobs/sha256/$(sha256sum <"$config" | cut -d' ' -f1)"
	manifest=$folder/manifest
	jq --null-input --join-output --compact-output --argjson config "$(descriptor application/vnd.oci.image.config.v1+json "$config")" '
		{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: $ARGS.positional}' \
		--jsonargs "${descriptors[@]}" >"$manifest" || return
	digest=$(sha256sum <"$manifest" | cut -d' ' -f1)
	jq --null-input --compact-output --argjson manifest "$(descriptor application/vnd.oci.image.manifest.v1+json "$manifest")" \
		--argjson platform "$(jq '{architecture, os}' "$config")" --arg name "$name" '
		{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: [$manifest + {platform: $platform, annotations: {
			"io.containerd.image.name": ("docker.io/" + $name), "org.opencontainers.image.ref.name": ($name | split(":")[1])}}]}' >"$folder/index.json" || return
	mv "$manifest" "$folder/blobs/sha256/$digest"
	echo '{"imageLayoutVersion":"1.0.0"}' >"$folder/oci-layout"
	tar --create --file="$out" --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=r,u+w,a+X --hard-dereference \
		-C "$folder" oci-layout index.json blobs || return
	rm -r "$folder"
	echo "sha256:$digest"
}

# descriptor KIND FILE prints the OCI descriptor of a file.
descriptor() {
	printf '{"mediaType":"%s","digest":"sha256:%s","size":%d}' "$1" "$(sha256sum <"$2" | cut -d' ' -f1)" "$(stat --dereference --format %s "$2")"
}

# archived_image OUT NAME IMAGE writes an OCI archive of an image that Docker has, and prints its
# digest.
archived_image() {
	local saved layers
	saved=$(mktemp -d "$oci_layers/saved.XXXXXX")
	docker save "$3" | tar --extract -C "$saved" || return
	mapfile -t layers < <(jq --raw-output '.[0].Layers[]' "$saved/manifest.json")
	archived "$1" "$2" "$saved/$(jq --raw-output '.[0].Config' "$saved/manifest.json")" "${layers[@]/#/$saved/}" || return
	rm -r "$saved"
}
