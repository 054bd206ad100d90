# The image of the steps, for those who build with a container engine. make image gives the same contents without one.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
COPY steps-image/image/go.mod steps-image/image/go.sum steps-image/image/
RUN go mod download && cd steps-image/image && go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X github.com/atewf/atewf/internal/build.version=$VERSION" -o /out/atewf-steps ./steps-image \
 && cd steps-image/image && go run . -roots /out/ca-certificates.crt

FROM scratch
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/atewf-steps /atewf-steps
USER 65532:65532
ENTRYPOINT ["/atewf-steps"]
